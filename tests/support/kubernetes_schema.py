"""What is wrong with the Kubernetes objects of a job: unknown keys, values of a wrong type.

The API server refuses both with `fieldValidation=Strict`. JobSet's schema is that of the models
that Kubeflow generates from JobSet's own API definitions; Kubernetes' is that of its releases.
"""

import copy
import functools
import typing
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pydantic
from kubernetes_validate import utils

Object = dict[str, Any]
KUBERNETES = "1.34"
# Each validation would read its schema, megabytes of JSON, from the disk.
utils.schema_contents = functools.cache(utils.schema_contents)
_TOP = ("apiVersion", "kind", "metadata", "spec")


def wrong_in(found: Object) -> list[str]:
    """Returns what the API server would say, one entry each; empty if it takes the object."""
    if found["kind"] != "JobSet":
        return _wrong_in_kubernetes(found)
    # Here, because its hundreds of models take a second of every process that collects tests.
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set_spec import JobsetV1alpha2JobSetSpec

    spec = copy.deepcopy(found["spec"])
    wrong = [f'unknown field "{key}"' for key in found if key not in _TOP]
    for group in spec.get("replicatedJobs", []):
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": found["metadata"]}
        wrong += _wrong_in_kubernetes(job | {"spec": group.get("template", {}).get("spec", {})})
        if "spec" in group.get("template", {}):  # Kubeflow's models have no quantities of resources
            group["template"]["spec"] = {"template": {}}
    return wrong + _wrong_in_model(JobsetV1alpha2JobSetSpec, spec, "spec")


def misspelt(found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the path of every key that has a schema, and a copy of the object in which that key is
    misspelt. Names that are free (labels, annotations, data, limits) have none."""
    free = path.endswith(("labels", "annotations", "nodeSelector", "limits", "data"))
    if isinstance(found, dict):
        for key, value in found.items():
            if not free:
                other = {(f"{k}x" if k == key else k): v for k, v in found.items()}
                yield f"{path}.{key}", copy.deepcopy(other)
            for where, changed in misspelt(value, f"{path}.{key}"):
                yield where, {**found, key: changed}
    elif isinstance(found, list):
        for index, value in enumerate(found):
            for where, changed in misspelt(value, f"{path}[{index}]"):
                yield where, [*found[:index], changed, *found[index + 1 :]]


def _wrong_in_kubernetes(found: Object) -> list[str]:
    try:
        kubernetes_validate.validate(found, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [error.message[:300]]
    return []


def _wrong_in_model(model: type[pydantic.BaseModel], found: Object, path: str) -> list[str]:
    try:
        model.model_validate(found, strict=True)
    except pydantic.ValidationError as error:
        return [f"{path}.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return list(_unknown(model, found, path))


def _unknown(model: type[pydantic.BaseModel], found: Object, path: str) -> Iterator[str]:
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    for key, value in found.items():
        if key not in fields:
            yield f'unknown field "{path}.{key}"'
            continue
        inner = _model_in(fields[key].annotation)
        for one in value if isinstance(value, list) else [value]:
            if inner and isinstance(one, dict):
                yield from _unknown(inner, one, f"{path}.{key}")


def _model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    """Returns the model of a field: of its value, or of the entries of its list."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    inner = (_model_in(one) for one in typing.get_args(annotation))
    return next((model for model in inner if model), None)
