"""What all documents of the native API's answers have in common. Owns: that. Must not know: any of them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """A part of an answer: every field is always there."""

    model_config = ConfigDict(extra="forbid")
