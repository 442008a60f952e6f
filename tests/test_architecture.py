"""The architecture, kept by tests: who may import whom, what inherits from what, what stays light, and no pickle."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "callslip"
FILES = sorted(PACKAGE.rglob("*.py"))

# A part may import from itself and from parts with a smaller number.
LAYERS = {
    "errors": 0,
    "settings": 0,
    "runtime": 0,
    "recipes": 1,
    "corpus": 1,
    "identifiers": 2,
    "encoders": 2,
    "decoders": 3,
    "filters": 3,
    "training": 4,
    "search": 4,
    "storage": 4,
    "index": 5,
    "methods": 6,
    "evaluation": 6,
    "jobs": 7,
    "api": 8,
    "server": 9,
    "adapters": 9,
    "cli": 10,
    "__main__": 11,
}
# Importable by each other: they are the ground that everything else stands on.
GROUND = {"errors", "settings", "runtime"}


def imports(path: Path) -> list[tuple[str, int]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.col_offset) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, node.col_offset))
            if node.module == "callslip":
                found += [(f"callslip.{alias.name}", node.col_offset) for alias in node.names]
    return found


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    here = part_of(path)
    if here == "__init__":
        return
    assert here in LAYERS, f"{here} has no place in the architecture: add it here and to docs/architecture.md"
    for module, _ in imports(path):
        if not module.startswith("callslip."):
            continue
        there = module.split(".")[1]
        if there == here or there.startswith("__") or {here, there} <= GROUND:
            continue
        assert LAYERS[there] < LAYERS[here], f"{path.relative_to(PACKAGE)} imports {module}"


def test_methods_do_not_import_one_another():
    for path in (PACKAGE / "methods").rglob("*.py"):
        own = path.relative_to(PACKAGE / "methods").parts[0].removesuffix(".py")
        for module, _ in imports(path):
            if module.startswith("callslip.methods."):
                assert module.split(".")[2] == own, f"{path.relative_to(PACKAGE)} imports {module}"


def test_no_pickle_anywhere():
    banned = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for path in FILES:
        assert not {module.split(".")[0] for module, _ in imports(path)} & banned, path
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("load", "save") and isinstance(node.value, ast.Name):
                assert node.value.id != "torch", f"{path}: torch.{node.attr} pickles"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, path
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, path
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "np.load":
                given = {keyword.arg for keyword in node.keywords}
                assert "allow_pickle" in given, f"{path}:{node.lineno}: say allow_pickle=False"


LIGHT = [
    "callslip",
    "callslip.cli",
    "callslip.corpus",
    "callslip.corpus.load",
    "callslip.corpus.demo",
    "callslip.identifiers",
    "callslip.identifiers.table",
    "callslip.identifiers.quality",
    "callslip.storage.folder",
    "callslip.storage.rows",
    "callslip.storage.home",
    "callslip.storage.check",
    "callslip.storage.drift",
    "callslip.index.living",
    "callslip.evaluation.evaluate",
    "callslip.evaluation.comparison",
    "callslip.index.retriever",
    "callslip.methods",
    "callslip.methods.bm25",
    "callslip.jobs.plan",
    "callslip.jobs.engines",
]


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_import_nothing_heavy(module):
    program = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'transformers', 'sklearn', 'scipy', 'onnxruntime', 'faiss', 'ot'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"import {module} brings {done.stderr}"


def test_functions_stay_readable():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name} is longer than 60 lines"


# Composition before inheritance.

TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
CLASSES = {
    node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}


def depth(name: str) -> int:
    """How many of our classes there are from this one to the root."""
    return 1 + max((depth(base) for base in CLASSES[name] if base in CLASSES and base != name), default=0)


def test_no_class_is_deeper_than_three():
    assert {name: depth(name) for name in CLASSES if depth(name) > 3} == {}


def names_used() -> set[str]:
    """Classes that are called, assigned (as `Settings = …`) or named in the registry: they exist for themselves."""
    used = set()
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                used.add(node.func.id)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                used.add(node.value.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ":" in node.value:
                used.add(node.value.rpartition(":")[2])
    return used


def test_no_base_class_exists_for_one_subclass():
    used = names_used()
    for name in CLASSES:
        heirs = [heir for heir, bases in CLASSES.items() if name in bases]
        assert len(heirs) != 1 or name in used, f"{name} exists only to be inherited by {heirs[0]}: make it one class"


def test_private_members_stay_in_their_module():
    """`other._member` is only for the module whose class has the member."""
    harmless = {"_asdict", "_replace", "_fields", "_make", "_getframe"}
    owned = {
        node.attr
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    owned |= {node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for path, tree in TREES.items():
        own = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        }
        own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        own |= {
            node.target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
                continue
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                continue
            foreign = node.attr in owned and node.attr not in own and node.attr not in harmless
            assert not foreign, f"{path.relative_to(PACKAGE)}:{node.lineno} uses {ast.unparse(node)}"


def test_every_setting_is_read():
    """A field that nothing reads as `s.field` or `….settings.field` cannot act."""
    from callslip.methods import METHODS
    from callslip.settings import describe

    read = set()
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = node.value
                named = isinstance(owner, ast.Name) and owner.id == "s"
                if named or (isinstance(owner, ast.Attribute) and owner.attr == "settings"):
                    read.add(node.attr)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                read |= {one.value for one in node.args[1:] if isinstance(one, ast.Constant)}
    own_reads = {"item_decay", "queries", "seq2seq", "train_encoder"}  # read by the settings and readers themselves
    for name, method in METHODS.items():
        for field in describe(method.load().Settings):
            assert field.name in read | own_reads, f"{name}: nothing reads {field.name}"


def test_the_root_has_few_modules():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert modules == {"api", "errors", "settings"}
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize(("name", "most"), [("asi++", 55), ("glen", 52), ("genret", 56)])
def test_methods_have_no_more_settings_than_a_person_can_read(name, most):
    from callslip.methods import find
    from callslip.settings import describe

    assert len(describe(find(name).load().Settings)) <= most


EQUATIONS = {
    "asi": "bottleneck code_distance discrete_contrastive distribution_density generation_loss information_bottleneck",
    "genret": "commitment constrained_kmeans diversity reconstruction retrieval sinkhorn straight_through",
    "glen": "annealed_temperature collision_order identifier_embedding identifier_weights keyword_codes keyword_loss "
    "pairwise_ranking pointwise_retrieval relevance",
    "tied_atomic": "contrastive margin_mse",
    "uri": "average_partition_entropy balance balanced_assignment commitment e_step m_step memory",
}


@pytest.mark.parametrize("paper", EQUATIONS)
def test_a_papers_folder_gives_its_equations_by_name(paper):
    """Independent checks call them as `from callslip.methods import glen; glen.pairwise_ranking`."""
    import importlib

    module = importlib.import_module(f"callslip.methods.{paper}")
    for name in EQUATIONS[paper].split():
        assert callable(getattr(module, name)), f"{paper}.{name}"


def test_one_word_for_one_thing():
    """Search people and generative-retrieval papers mean different things by it, so we never write it."""
    word = "doc" + "id"
    for path in [*FILES, *sorted((PACKAGE.parent / "docs").rglob("*.md")), PACKAGE.parent / "README.md"]:
        if path.name == "glossary.md" or not path.exists():
            continue  # the glossary says why
        assert word not in path.read_text(encoding="utf-8").lower().replace("doc_id", ""), path
