"""The Lightning wrapper: it trains, logs, and warms up; one step is the step of a plain loop."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from irmtv.losses import GroupDROLoss, IRMTVLoss, MinimaxTVLoss, VRExLoss

lightning = pytest.importorskip("lightning", reason="extra `lightning` is not installed")

from lightning.pytorch import Callback, Trainer  # noqa: E402

from irmtv.losses.lightning import InvariantModule, PenaltyWarmup  # noqa: E402

pytestmark = [
    # lightning's own advice about loaders and logging intervals: loaders this small need no workers
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*number of training batches.*smaller than the logging interval.*"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`.*"),  # by intent
    # lightning asks for leaves of a batch as older versions of torch wanted it
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
]

N = 48


def rows() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 3, generator=g)
    return x, (x[:, 0] > 0).float(), torch.arange(N) % 2, torch.linspace(0, 1, N).unsqueeze(1)


class Named(Dataset):
    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {name: column[i] for name, column in self.columns.items()}


def trainer(tmp_path, epochs: int = 2, callbacks: tuple = ()) -> Trainer:
    return Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=list(callbacks),
    )


def predictor() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


@pytest.mark.parametrize("named", [True, False])
def test_it_is_the_plain_loop(tmp_path, named):
    x, y, codes, aux = rows()
    data = Named(x=x, y=y, environment=codes) if named else TensorDataset(x, y, codes, aux)
    module = InvariantModule(predictor(), IRMTVLoss("binary", "l1", 5.0, n_environments=2), lr=0.05)
    trainer(tmp_path).fit(module, DataLoader(data, batch_size=16))

    plain, criterion = predictor(), IRMTVLoss("binary", "l1", 5.0)
    adam = torch.optim.Adam(plain.parameters(), lr=0.05)
    for _ in range(2):
        for rows_ in torch.arange(N).split(16):
            adam.zero_grad()
            criterion(plain(x[rows_]), y[rows_], environment=codes[rows_]).backward()
            adam.step()
    torch.testing.assert_close(module.predictor.state_dict(), plain.state_dict())


def test_what_is_logged(tmp_path):
    x, y, codes, _ = rows()
    module = InvariantModule(predictor(), VRExLoss("binary", 3.0, n_environments=2), torch.optim.SGD, lr=0.0)
    run = trainer(tmp_path, 1)
    loader = DataLoader(TensorDataset(x, y, codes), batch_size=N)
    run.fit(module, loader, loader)
    logged = {k: float(v) for k, v in run.logged_metrics.items()}
    losses = nn.functional.binary_cross_entropy_with_logits(module(x).squeeze(1), y, reduction="none").detach()
    for code in (0, 1):
        assert logged[f"train_risk_environment_{code}"] == pytest.approx(float(losses[codes == code].mean()), rel=1e-5)
    assert logged["train_risk"] == pytest.approx(float(losses.mean()), rel=1e-5)
    expected = (logged["val_risk"] + 3 * logged["val_penalty"]) / 4
    assert logged["val_loss"] == pytest.approx(expected, rel=1e-5)
    assert logged["val_loss"] == pytest.approx(logged["train_loss"], rel=1e-5)
    predictions = torch.cat(run.predict(module, DataLoader(x, batch_size=16)))
    torch.testing.assert_close(predictions, module(x).detach())


class Recorder(Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[float, bool]] = []

    def on_train_batch_end(self, trainer, pl_module, *_) -> None:
        frozen = getattr(pl_module.loss, "environments_frozen", False)
        self.seen.append((pl_module.loss.penalty_weight, frozen))


def test_warmup_by_epoch_freezes_the_environments(tmp_path):
    x, y, _, aux = rows()
    loss = MinimaxTVLoss("binary", penalty_weight=8.0, n_aux=1).standardise(aux)
    module = InvariantModule(predictor(), loss, lr=0.01, environment_lr=0.1, weight_decay=0.01)
    recorder = Recorder()
    trainer(tmp_path, 4, (PenaltyWarmup(warmup=1, ramp=2), recorder)).fit(
        module, DataLoader(TensorDataset(x, y, aux), batch_size=24)
    )
    assert recorder.seen == [(0.0, False)] * 2 + [(4.0, True)] * 2 + [(8.0, True)] * 4
    groups = module.configure_optimizers().param_groups
    assert [(g["lr"], g["weight_decay"]) for g in groups] == [(0.01, 0.01), (0.1, 0.0)]


def test_warmup_by_step_can_be_fitted_twice(tmp_path):
    x, y, codes, _ = rows()
    module = InvariantModule(predictor(), IRMTVLoss(penalty_weight=6.0), lr=0.01)
    loader = DataLoader(TensorDataset(x, y, codes), batch_size=16)
    for _ in range(2):
        recorder = Recorder()
        trainer(tmp_path, 1, (PenaltyWarmup(warmup=2, unit="step"), recorder)).fit(module, loader)
        assert [weight for weight, _ in recorder.seen] == [0.0, 0.0, 6.0]


class Stops(Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_train_batch_end(self, *_) -> None:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.filterwarnings("ignore:.*Detected KeyboardInterrupt.*")
@pytest.mark.usefixtures("ctrl_c")  # Lightning leaves SIGINT ignored
def test_a_fit_that_breaks_off_gives_the_weight_back(tmp_path, error):
    x, y, codes, _ = rows()
    module = InvariantModule(predictor(), IRMTVLoss(penalty_weight=6.0), lr=0.01)
    loader = DataLoader(TensorDataset(x, y, codes), batch_size=16)
    with pytest.raises((RuntimeError, KeyboardInterrupt, SystemExit)):
        trainer(tmp_path, 1, (PenaltyWarmup(warmup=5), Stops(error))).fit(module, loader)
    assert module.loss.penalty_weight == 6.0
    recorder = Recorder()
    trainer(tmp_path, 2, (PenaltyWarmup(warmup=1), recorder)).fit(module, loader)
    assert [weight for weight, _ in recorder.seen] == [0.0] * 3 + [6.0] * 3


def test_teardown_gives_the_weight_back_too():
    module = InvariantModule(predictor(), IRMTVLoss(penalty_weight=6.0))
    warmup, run = PenaltyWarmup(warmup=5), Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    warmup.on_fit_start(run, module)
    warmup.on_train_batch_start(run, module, None, 0)
    assert module.loss.penalty_weight == 0.0
    warmup.teardown(run, module, "fit")
    assert module.loss.penalty_weight == 6.0
    module.loss.penalty_weight = 7.0  # the user's, after the fit
    warmup.teardown(run, module, "test")
    assert module.loss.penalty_weight == 7.0


@pytest.mark.parametrize("freeze", [True, False])
def test_a_second_fit_lets_the_environments_learn_again(tmp_path, freeze):
    x, y, _, aux = rows()
    loss = MinimaxTVLoss("binary", penalty_weight=8.0, n_aux=1).standardise(aux)
    module = InvariantModule(predictor(), loss, lr=0.01, environment_lr=0.1)
    loader = DataLoader(TensorDataset(x, y, aux), batch_size=24)
    trainer(tmp_path, 2, (PenaltyWarmup(warmup=1),)).fit(module, loader)
    assert loss.environments_frozen
    before = loss.membership(aux)
    recorder = Recorder()
    trainer(tmp_path, 2, (PenaltyWarmup(warmup=1, freeze_environments=freeze), recorder)).fit(module, loader)
    assert [frozen for _, frozen in recorder.seen] == ([False] * 2 + [True] * 2 if freeze else [True] * 4)
    assert torch.equal(loss.membership(aux), before) is not freeze


def test_a_test_is_logged_as_a_validation_is(tmp_path):
    x, y, codes, _ = rows()
    module = InvariantModule(predictor(), IRMTVLoss("binary", "l1", 3.0, n_environments=2))
    loader, run = DataLoader(TensorDataset(x, y, codes), batch_size=N), trainer(tmp_path, 1)
    (tested,) = run.test(module, loader, verbose=False)
    (validated,) = run.validate(module, loader, verbose=False)
    assert set(tested) == {"test_loss", "test_risk", "test_penalty"}
    assert tested == {name.replace("val", "test"): value for name, value in validated.items()}


def test_groupdro_has_no_penalty_to_log(tmp_path):
    x, y, codes, _ = rows()
    module = InvariantModule(predictor(), GroupDROLoss(n_environments=2, step_size=0.5), lr=0.01)
    run = trainer(tmp_path, 1)
    run.fit(module, DataLoader(Named(x=x, y=y, environment=codes, aux=codes), batch_size=16))
    assert "train_penalty" not in run.logged_metrics
    assert module.loss.weights.tolist() != [0.5, 0.5]
    with pytest.raises(ValueError, match=r"PenaltyWarmup needs a module whose `loss` has a penalty.*Got GroupDROLoss"):
        trainer(tmp_path, 1, (PenaltyWarmup(1),)).fit(module, DataLoader(TensorDataset(x, y, codes)))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((1, 2), r"a batch must be \(x, y, environment\).*Got tuple of 2"),
        ({"x": 1, "y": 2, "enviroment": 3}, r"Got the keys \['enviroment', 'x', 'y'\]. Did you mean 'environment'\?"),
        ({"x": 1, "environment": 3}, r"a batch must be a dict with 'x', 'y'"),
    ],
)
def test_batches_that_do_not_fit(batch, message):
    with pytest.raises(ValueError, match=message):
        InvariantModule(predictor(), IRMTVLoss()).training_step(batch, 0)


def test_settings_that_do_not_fit():
    with pytest.raises(ValueError, match=r"loss must be a loss of irmtv.losses.*Got MSELoss"):
        InvariantModule(predictor(), nn.MSELoss())
    with pytest.raises(ValueError, match=r"warmup must be a whole number of at least 0. Got -1"):
        PenaltyWarmup(-1)
    with pytest.raises(ValueError, match=r"unit must be one of"):
        PenaltyWarmup(1, unit="batch")


def test_without_lightning_the_extra_is_named():
    code = (
        "import sys; sys.modules['lightning'] = None; sys.modules['lightning.pytorch'] = None\n"
        "try:\n    import irmtv.losses.lightning\nexcept ImportError as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'irmtv[lightning]'" in said
