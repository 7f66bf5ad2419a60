"""Nothing is lost: sweeps that are killed, stores with a flipped bit, commands that are stopped (`make kills`)."""
