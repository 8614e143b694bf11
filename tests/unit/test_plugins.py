"""Each plugin here is a real distribution on disk: metadata, entry points and a module, found by importlib."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain

import pytest
from verl_core.errors import PluginError
from verl_core.plugins import DEFAULTS, discover, find, load, load_alone, split_names
from verl_core.registry import ALERT_SINK, RECOVERY, STORAGE
from verl_core.types import BuildContext, StepResult, UpdateMetrics

from tests.support.dists import Install

POLICY = """
from dataclasses import dataclass
from verl_core.hookspecs import hookimpl

@dataclass(frozen=True)
class Config:
    patience: int = 1

class Policy:
    def __init__(self, patience):
        self.patience = patience
    def decide(self, fault, history):
        return None

@hookimpl
def register_recovery_policies(register):
    register("{name}", Config, lambda config, context: Policy(config.patience))
"""


def test_installed_plugins_are_listed_and_not_imported(install: Install) -> None:
    install("verl-third", {"third": "third_plugin_one"}, {"third_plugin_one": "raise SystemExit(9)\n"})
    listed = {info.name: info for info in discover()}
    third = listed["third"]
    assert (third.distribution, third.version, third.module) == ("verl-third", "1.2", "third_plugin_one")
    assert not third.default
    assert "third_plugin_one" not in sys.modules
    assert {"core", *chain.from_iterable(DEFAULTS.values())} <= {name for name, info in listed.items() if info.default}


def test_names_come_in_comma_lists_and_repeated() -> None:
    assert split_names(["a,b", " c ,a", "", ","]) == ["a", "b", "c"]


def test_what_is_named_is_loaded_with_core_and_nothing_else(install: Install) -> None:
    install("verl-third", {"wait": "third_wait", "other": "third_other"}, {"third_wait": POLICY.format(name="wait")})
    loaded = load(["wait"], defaults=False)
    assert [info.name for info in loaded.plugins] == ["core", "wait"]
    assert loaded.registry.names(RECOVERY) == ["wait"]
    assert loaded.registry.names(STORAGE) == []
    policy = loaded.registry.build(RECOVERY, "wait", {"patience": 3}, BuildContext())
    assert vars(policy) == {"patience": 3}
    provider = loaded.registry.get(RECOVERY, "wait")
    assert (provider.plugin, provider.distribution) == ("wait", "verl-third")


def test_kinds_that_nothing_named_offers_get_their_default(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("verl-third", {"wait": "third_wait2"}, {"third_wait2": POLICY.format(name="wait")})
    monkeypatch.setattr(
        "verl_core.plugins.DEFAULTS", {RECOVERY: ("retry", "rebuild"), ALERT_SINK: ("log",)}
    )  # those without torch
    assert [info.name for info in load([]).plugins] == ["core", "retry", "rebuild", "log"]
    assert [info.name for info in load(["wait"]).plugins] == ["core", "wait", "log"]
    assert [info.name for info in load(["log,wait", "log"]).plugins] == ["core", "log", "wait"]


def test_observers_of_a_plugin_listen_in_the_order_of_loading(install: Install) -> None:
    text = (
        "from verl_core.hookspecs import hookimpl\nseen = []\n"
        "@hookimpl\ndef step_finished(result):\n    seen.append(result.step)\n"
        "@hookimpl\ndef recovery_finished(seconds):\n    seen.append(seconds)\n"
        "@hookimpl\ndef run_started():\n    raise RuntimeError('broken')\n"
    )
    install("verl-third", {"watch": "third_watch"}, {"third_watch": text})
    observers = load(["watch"], defaults=False).observers
    observers.step_finished(StepResult(5, UpdateMetrics(0, 0, 0, 0, 0, 0, 0), "", 0.0, 0.0))
    observers.run_started("r", 1, 0)
    assert sys.modules["third_watch"].seen == [5]
    assert observers.errors == {("watch", "run_started"): 1}


def test_loading_a_plugin_alone_needs_no_core(install: Install) -> None:
    install("verl-third", {"wait": "third_wait3"}, {"third_wait3": POLICY.format(name="wait")})
    loaded = load_alone(find("wait", discover()))
    assert [(p.kind, p.name) for p in loaded.registry.providers()] == [("recovery", "wait")]


# --- errors: what, where and what next -------------------------------------------------------


def error_of(*names: str) -> str:
    with pytest.raises(PluginError) as caught:
        load(names, defaults=False)
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_an_unknown_name_gets_a_suggestion_and_how_to_install_it() -> None:
    assert error_of("lcoal").startswith("unknown plugin 'lcoal', did you mean 'local'? — `verl-core plugins` lists")
    assert "did you mean" not in error_of("xyzzy")
    assert error_of("xyzzy").endswith("pip install verl-core-xyzzy")


def test_an_unknown_name_that_is_an_extra_names_the_extra() -> None:
    assert error_of("smollm2").endswith("pip install 'verl-core[smollm2]'")


def test_a_name_claimed_by_two_distributions_names_both(install: Install) -> None:
    install("verl-third", {"wait": "third_a"}, {})
    install("verl-fourth", {"wait": "third_b"}, {})
    text = error_of("wait")
    assert "plugin 'wait' is claimed by verl-fourth (third_b) and by verl-third (third_a)" in text
    assert "pip uninstall" in text


def test_a_stranger_that_claims_core_stops_the_start(install: Install) -> None:
    install("verl-third", {"core": "third_core"}, {})
    assert "plugin 'core' is claimed by verl-core" in error_of()


def test_a_missing_module_names_the_extra_that_brings_it(install: Install) -> None:
    install("verl-third", {"safe_fast": "third_fast"}, {"third_fast": "import no_such_engine\n"}, extras="safe-fast")
    text = error_of("safe_fast")
    assert text.startswith("plugin 'safe_fast' (verl-third 1.2, third_fast): cannot be imported: ")
    assert "No module named 'no_such_engine' — pip install 'verl-third[safe_fast]'" in text


def test_a_missing_module_without_an_extra_names_the_module(install: Install) -> None:
    install("verl-third", {"fast": "third_fast2"}, {"third_fast2": "import no_such_engine\n"})
    assert error_of("fast").endswith("install the package that has module 'no_such_engine', or leave the plugin out")


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        ("third_raises", "raise OSError('libfoo.so:\\nnot found')\n", "cannot be imported: OSError: libfoo.so: not"),
        ("third_syntax", "def\n", "cannot be imported: SyntaxError"),
        ("third_silent", "x = 1\n", "implements no hook"),
        (
            "third_unknown",
            "from verl_core.hookspecs import hookimpl\n@hookimpl\ndef register_storage(register): ...\n",
            "unknown hook 'register_storage', did you mean 'register_storages'?",
        ),
        (
            "third_argument",
            "from verl_core.hookspecs import hookimpl\n@hookimpl\ndef step_finished(reslut): ...\n",
            "cannot be registered: PluginValidationError",
        ),
        (
            "third_wrapper",
            "from verl_core.hookspecs import hookimpl\n@hookimpl(wrapper=True)\ndef step_finished(result): yield\n",
            "'step_finished' is a hook wrapper",
        ),
        (
            "third_hook_raises",
            "from verl_core.hookspecs import hookimpl\n@hookimpl\ndef register_rewards(register): register('x')\n",
            "cannot be registered: TypeError",
        ),
    ],
)
def test_a_broken_plugin_says_what_is_wrong_with_it(install: Install, module: str, text: str, message: str) -> None:
    install("verl-third", {"bad": module}, {module: text})
    found = error_of("bad")
    assert found.startswith(f"plugin 'bad' (verl-third 1.2, {module}): ")
    assert message in found


def test_an_entry_point_whose_attribute_is_missing_is_broken(install: Install) -> None:
    install("verl-third", {"bad": "third_attribute:plugin"}, {"third_attribute": "x = 1\n"})
    assert "cannot be imported: AttributeError" in error_of("bad")


def test_an_optional_hook_that_is_unknown_is_left_alone(install: Install) -> None:
    text = POLICY.format(name="wait") + "\n@hookimpl(optionalhook=True)\ndef of_the_future(x): ...\n"
    install("verl-third", {"wait": "third_optional"}, {"third_optional": text})
    assert load(["wait"], defaults=False).registry.names(RECOVERY) == ["wait"]


def test_the_same_provider_of_two_plugins_names_both(install: Install) -> None:
    same = POLICY.format(name="wait")
    install("verl-third", {"one": "third_one", "two": "third_two"}, {"third_one": same, "third_two": same})
    text = error_of("one", "two")
    assert "recovery 'wait' is registered twice: by plugin 'one' (verl-third) and by plugin 'two' (verl-third)" in text


def test_one_broken_plugin_hurts_only_those_who_name_it(install: Install) -> None:
    modules = {"third_good": POLICY.format(name="good"), "third_bad": "import no_such_engine\n"}
    install("verl-third", {"good": "third_good", "bad": "third_bad"}, modules)
    assert load(["good"], defaults=False).registry.names(RECOVERY) == ["good"]


def test_a_name_in_the_config_that_no_loaded_plugin_offers_is_an_error() -> None:
    with pytest.raises(PluginError, match=r"storage: no loaded plugin offers storage 's3'.*--plugins"):
        load([], defaults=False).registry.get(STORAGE, "s3")


def test_core_is_loaded_without_torch_and_offers_what_it_ships() -> None:
    code = (
        "import sys\nfrom verl_core.plugins import load\n"
        "loaded = load(['retry', 'log'], defaults=False)\n"
        "heavy = {'torch', 'transformers', 'ray', 'datasets', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "print(*sorted(p.kind + ':' + p.name for p in loaded.registry.providers() if p.plugin == 'core'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "algorithm:grpo",
        "checkpointer:sharded",
        "resharder:slices",
        "reward:exact_match",
        "reward:gsm8k",
        "reward:reasoning_gym",
        "rollout_writer:atomic",
    ]
