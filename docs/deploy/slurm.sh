#!/bin/bash
# Rows over the ranks of a Slurm job: one torchrun on every machine, checkpoints on the shared file system. Where the
# time of the job is up, it is queued again and continues. Lines with "change" above them are those to change.
#
#   sbatch slurm.sh train.py       a program of your own, such as examples/rows_over_ranks.py
#   sbatch slurm.sh -m irmtv fit sales --target sold --environment region --distributed --checkpoint checkpoints/sales
#
#SBATCH --job-name=irmtv
# change: machines, and cores and memory of each (0: all of it)
#SBATCH --nodes=4
#SBATCH --cpus-per-task=16
#SBATCH --mem=0
# change: the longest time that the queue allows
#SBATCH --time=08:00:00
# one torchrun on every machine, which starts the ranks
#SBATCH --ntasks-per-node=1
# this script hears of the end three minutes before it, and the job may be queued again, with one log
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append

set -u

# change: ranks of a machine. With GPUs: their number, and #SBATCH --gpus-per-node
RANKS=${RANKS:-$SLURM_CPUS_PER_TASK}
# change: where the program writes its checkpoints; all machines must see the folder
export CHECKPOINTS=${CHECKPOINTS:-$SLURM_SUBMIT_DIR/checkpoints}
# change: Python with irmtv, the same on all machines
# source /shared/venv/bin/activate
mkdir -p "$CHECKPOINTS" || exit 1

export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / RANKS > 0 ? SLURM_CPUS_PER_TASK / RANKS : 1))
# ranks that are started again would else look for those that are gone (torch 2.13)
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# change: where machines have several networks, the one that ranks use
# export GLOO_SOCKET_IFNAME=ib0

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000)) # another one for every job: two may share a machine

srun --kill-on-bad-exit=1 torchrun \
    --nnodes="$SLURM_NNODES" --nproc-per-node="$RANKS" --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:$port" \
    "$@" &
step=$!

stopped=""
trap 'stopped=yes; kill -TERM "$step"' TERM
wait "$step"
code=$?
if [ -n "$stopped" ]; then
    wait "$step" # the first wait ended with the signal
    echo "the time is up: queued again"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
