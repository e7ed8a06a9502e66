"""Kinds for the names and files of models; decides nothing about whether they exist."""

import os

from hypnos_engine.config.kinds import Refused, Text, check_text, found
from hypnos_engine.domain.model import ModelId

_LONGEST_ID = 128


def has_parent_step(path: str) -> bool:
    """Whether a path as written has a `..` step, with which it could leave its folder."""
    steps = path.replace("\\", "/") if os.name == "nt" else path
    return ".." in steps.split("/")


def _model_id(text: str) -> ModelId:
    check_text(text, MODEL_ID.expected, longest=_LONGEST_ID)
    if any(char.isspace() for char in text):
        raise Refused(f"expected {MODEL_ID.expected}, found {found(text)}", "replace the blanks by hyphens")
    return ModelId(text)


def _model_file(text: str) -> str:
    check_text(text, MODEL_FILE.expected)
    if has_parent_step(text):
        raise Refused(
            f"a path in a models folder cannot have a `..` step, found {found(text)}", "write the absolute path instead"
        )
    return text


def _title(text: str) -> str:
    return check_text(text, TITLE.expected, longest=200)


MODEL_ID: Text[ModelId] = Text(f"a model id of at most {_LONGEST_ID} characters without blanks", _model_id)
MODEL_FILE: Text[str] = Text("a path inside the models folders, or an absolute one", _model_file)
TITLE: Text[str] = Text("a name of at most 200 characters", _title)
