"""An extension of griffe: docstrings of compiled modules, and paragraphs for Args, Returns, Raises and their kind.

Signatures and types come from the stubs, texts from the modules as they run. It must never change a text, only break
it into paragraphs.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import griffe

_LABEL = re.compile(r"(?:(?<=^)|(?<=\n)|(?<=[.;:] ))(Args|Attributes|Returns|Raises|Thread|Durability|Source): ")


def paragraphs(text: str) -> str:
    """The labels of our docstrings (``Raises: ...``) as paragraphs of Markdown."""
    return _LABEL.sub(lambda found: f"\n\n**{found[1]}:** ", text).replace("``", "`").strip()


def unsigned(obj: griffe.Object, text: str) -> str:
    """A docstring without the signature line that Cython puts in front, which the stub has better."""
    first, _, rest = text.partition("\n")
    signed = re.match(rf"(?:\w+\.)*{re.escape(obj.name)}(?:\(|: \S+$)", first)
    return inspect.cleandoc(rest if signed else text)


def running(obj: griffe.Object) -> str:
    """The docstring of the running object; with its signature where an attribute of a class is a function."""
    try:
        found: Any = import_module(obj.module.path)
    except ImportError:
        return ""  # a room whose extra is not installed
    for name in obj.path.removeprefix(obj.module.path).strip(".").split("."):
        found = getattr(found, name, None)
    if not callable(found) and not inspect.isdatadescriptor(found):
        return ""
    text = (found.__doc__ if isinstance(found, type) else inspect.getdoc(found)) or ""
    shown = unsigned(obj, text)
    if obj.is_attribute and shown != inspect.cleandoc(text):
        return f"`{text.partition(chr(10))[0]}`\n\n{shown}"
    return shown


class RuntimeDocstrings(griffe.Extension):
    """Gives objects of stubs the texts of their modules."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.is_module or obj.name.startswith("_"):
            return
        if obj.docstring is None and (str(obj.filepath).endswith(".pyi") or obj.is_attribute):
            text = running(obj)
            if text:
                obj.docstring = griffe.Docstring(text, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = paragraphs(unsigned(obj, obj.docstring.value))

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """A method that a class takes from elsewhere (``query = query``) is shown as the function that it is."""
        for cls in _classes(pkg):
            for name, member in list(cls.members.items()):
                if member.is_alias or not member.is_attribute or not str(member.value).isidentifier():
                    continue
                found = cls.module.members.get(str(member.value))
                try:
                    target = found.final_target if found is not None and found.is_alias else found
                    if target is not None and target.is_function:
                        cls.members[name] = griffe.Alias(name, target, parent=cls)
                except griffe.AliasResolutionError:
                    continue  # of another package


def _classes(module: griffe.Module) -> list[griffe.Class]:
    found = [cls for cls in module.classes.values() if not cls.is_alias]
    for inner in module.modules.values():
        if not inner.is_alias:
            found += _classes(inner)
    return found
