"""A package's `__all__` is exactly what its `__init__` offers: what it imports from us, and what it defines itself."""

import ast
from pathlib import Path

import pytest

# How a package tells its names, and loads those late that need an extra.
_MECHANISM = ("__all__", "__getattr__")
SOURCE = Path(__file__).parents[2] / "src"
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))


def is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__") and name not in _MECHANISM)


def names_bound_by(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "headwater":
            return [name.asname or name.name for name in names]
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):
            return [name for late in body for name in names_bound_by(late)]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case _:
            return []


def declared_names(tree: ast.Module) -> list[str] | None:
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                declared: list[str] = ast.literal_eval(value)
                return declared
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value):
                annotated: list[str] = ast.literal_eval(value)
                return annotated
    return None


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: ".".join(path.relative_to(SOURCE).parts))
def test_the_public_names_of_a_package_are_those_it_declares(package):
    tree = ast.parse((package / "__init__.py").read_text())
    offered = {name for statement in tree.body for name in names_bound_by(statement) if is_public(name)}

    assert sorted(declared_names(tree) or []) == sorted(offered)
    assert declared_names(tree) is not None, "there is no __all__"
