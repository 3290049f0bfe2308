"""Write the goldens of tests/convert/test_layout_goldens.py with torch and transformers.

cd tests && PYTHONPATH=support python -m goldens.make_layouts
"""

import dataclasses

import numpy as np
import torch
import torch_parity as parity
from golden_case import FOLDER, STEPS
from layout_models import GOLDEN, layout_config, task_batch, task_config, task_params
from parity_steps import RECIPE
from small import run_config


def main() -> None:
    found = {}
    for layout, task in GOLDEN:
        config = layout_config(layout) if task == "mlm" else task_config(layout, task)
        params, batches = task_params(config), [task_batch(config, n) for n in range(STEPS)]
        model = parity.theirs_of(config, params)
        with torch.no_grad():
            _, logits = parity.outputs_of(model, config, batches[0])
        run = run_config(recipe=RECIPE)
        data = dataclasses.replace(run.data, pairing="single")
        run = dataclasses.replace(run, model=config, data=data)
        losses = parity.their_steps(model, run, batches)
        values = {"logits": logits.numpy(), "losses": np.float32(losses)}
        found |= {f"{layout}/{task}/{name}": value for name, value in values.items()}
    np.savez_compressed(FOLDER / "layouts.npz", **found)


if __name__ == "__main__":
    main()
