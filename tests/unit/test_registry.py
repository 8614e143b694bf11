from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from verl_core.errors import ConfigError, PluginError
from verl_core.registry import KINDS, RECOVERY, REWARD, Kind, Registry
from verl_core.types import BuildContext, Prompt

CONTEXT = BuildContext(run_id="r", seed=7)
GREETING: Kind[[], str] = Kind("greeting", "register_greetings", "greet")
LETTER: Kind[[str], str] = Kind("letter", "register_letters", "letters")  # built on something given


@dataclass(frozen=True, slots=True)
class Manner:
    polite: bool = True


@dataclass(frozen=True, slots=True)
class GreetConfig:
    word: str = "hello"
    times: int = 1
    timeout_s: float = 5.0
    manner: Manner = field(default_factory=Manner)


@dataclass(frozen=True, slots=True)
class SecretConfig:
    token: str = "???"


def greet(config: GreetConfig, context: BuildContext) -> str:
    return " ".join([config.word] * config.times) + f" {context.seed}" + ("" if config.manner.polite else "!")


def letter(config: GreetConfig, context: BuildContext, paper: str) -> str:
    return f"{config.word} on {paper}"


@pytest.fixture
def registry() -> Registry:
    made = Registry()
    made.register(GREETING, "plain", GreetConfig, greet, plugin="one", distribution="dist-one")
    made.register(LETTER, "short", GreetConfig, letter, plugin="one", distribution="dist-one")
    return made


def test_options_are_merged_into_the_plugins_own_record(registry: Registry) -> None:
    options = {"times": "2", "manner": {"polite": False}}
    assert registry.build(GREETING, "plain", options, CONTEXT) == "hello hello 7!"
    assert registry.build(GREETING, "plain", {}, CONTEXT) == "hello 7"


def test_a_provider_that_works_on_something_is_given_it(registry: Registry) -> None:
    assert registry.build(LETTER, "short", {"word": "dear"}, CONTEXT, "paper") == "dear on paper"


def test_a_provider_says_where_it_comes_from(registry: Registry) -> None:
    provider = registry.get(GREETING, "plain")
    assert (provider.kind, provider.name, provider.plugin) == ("greeting", "plain", "one")
    assert provider.distribution == "dist-one"
    assert provider.config_class is GreetConfig
    assert provider.keys == ("word", "times", "timeout_s", "manner")


def test_names_are_those_of_one_kind_in_the_order_of_registration(registry: Registry) -> None:
    registry.register(GREETING, "another", GreetConfig, greet)
    assert registry.names(GREETING) == ["plain", "another"]
    assert registry.names(LETTER) == ["short"]
    assert registry.names(RECOVERY) == []


def test_the_only_provider_of_a_kind_needs_no_name(registry: Registry) -> None:
    assert registry.only(GREETING) == "plain"
    with pytest.raises(PluginError, match=r"no recovery is loaded — load a plugin .* --plugins"):
        registry.only(RECOVERY)
    registry.register(GREETING, "another", GreetConfig, greet)
    with pytest.raises(PluginError, match="greet: several plugins offer a greeting: plain, another — choose one"):
        registry.only(GREETING)


def test_kinds_have_different_names_and_hooks() -> None:
    assert len({kind.name for kind in KINDS}) == len({kind.hook for kind in KINDS}) == len(KINDS) == 13


@pytest.mark.parametrize(
    ("options", "key", "near"),
    [({"tines": 2}, "tines", "times"), ({"manner": {"polit": True}}, "manner.polit", "polite")],
)
def test_an_unknown_key_is_named_with_its_block_and_the_nearest_key(
    registry: Registry, options: dict[str, object], key: str, near: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.build(GREETING, "plain", options, CONTEXT)
    text = str(caught.value)
    assert text.startswith(f"greet: unknown key '{key}' for greeting 'plain', did you mean '{near}'?")


def test_an_unknown_key_that_is_near_nothing_lists_the_known_ones(registry: Registry) -> None:
    with pytest.raises(ConfigError, match="known keys: word, times, timeout_s, manner") as caught:
        registry.check_options(GREETING, "plain", {"zzz": 1})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"times": "many"}, {"times": None}, {"times": [1]}, {"word": object()}, {"manner": 3}]
)
def test_a_value_of_the_wrong_type_is_one_line(registry: Registry, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.build(GREETING, "plain", options, CONTEXT)
    text = str(caught.value)
    assert text.startswith("greet: ")
    assert "greeting 'plain'" in text
    assert "\n" not in text


def test_a_missing_required_value_is_named(registry: Registry) -> None:
    registry.register(GREETING, "secret", SecretConfig, lambda config, context: config.token)
    with pytest.raises(ConfigError, match="key 'token' of greeting 'secret'"):
        registry.build(GREETING, "secret", {}, CONTEXT)
    assert registry.build(GREETING, "secret", {"token": "t"}, CONTEXT) == "t"


def test_checking_options_builds_nothing() -> None:
    built: list[GreetConfig] = []

    def build(config: GreetConfig, context: BuildContext) -> str:
        built.append(config)
        return config.word

    registry = Registry()
    registry.register(GREETING, "plain", GreetConfig, build)
    registry.check_options(GREETING, "plain", {"times": 3})
    assert built == []
    with pytest.raises(ConfigError):
        registry.check_options(GREETING, "plain", {"nope": 3})


def test_a_name_that_nothing_offers_is_an_error_with_what_there_is(registry: Registry) -> None:
    with pytest.raises(PluginError) as caught:
        registry.get(GREETING, "plian")
    text = str(caught.value)
    assert text.startswith("greet: no loaded plugin offers greeting 'plian', did you mean 'plain'?")
    assert "offered: plain; load the plugin that offers it with --plugins" in text
    with pytest.raises(PluginError, match="offered: none"):
        registry.get(RECOVERY, "retry")


def test_a_name_registered_twice_names_both_plugins(registry: Registry) -> None:
    with pytest.raises(PluginError) as caught:
        registry.register(GREETING, "plain", GreetConfig, greet, plugin="two", distribution="dist-two")
    text = str(caught.value)
    assert "greeting 'plain' is registered twice" in text
    assert "'one' (dist-one)" in text
    assert "'two' (dist-two)" in text


def test_a_config_class_that_cannot_hold_options_is_refused_at_once() -> None:
    @dataclass
    class Odd:
        anything: object = None

    registry = Registry()
    for bad in (str, Odd):
        with pytest.raises(PluginError, match="no usable config class"):
            registry.register(GREETING, "bad", bad, lambda config, context: "")
    assert registry.names(GREETING) == []


# --- rewards that are plain functions --------------------------------------------------------


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rewards_of_a_user", raising=False)
    (tmp_path / "rewards_of_a_user.py").write_text(
        "def same(response, answer):\n    return response == answer\n"
        "def alone(response):\n    return 1.0\n"
        "def nothing(response, answer):\n    return None\n"
        "number = 3\n"
    )
    (tmp_path / "my_broken_rewards.py").write_text("raise RuntimeError('no licence\\nat all')\n")
    return Registry()


def test_a_function_is_a_reward_without_a_plugin(rewards: Registry) -> None:
    reward = rewards.build(REWARD, "rewards_of_a_user:same", {}, CONTEXT)
    prompts = [Prompt(0, "a?", "a", (1,)), Prompt(1, "b?", "b", (2,))]
    assert reward.score(prompts, ["a", "c"]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_here:same", "No module named 'no_such_module_here'.*PYTHONPATH"),
        ("my_broken_rewards:same", "RuntimeError: no licence — .*PYTHONPATH"),
        ("rewards_of_a_user:sane", "has no function 'sane', did you mean 'same'"),
        ("rewards_of_a_user:number", "has no function 'number'"),
        ("rewards_of_a_user:", "has no function ''"),
        (":same", "cannot be imported"),
        ("rewards_of_a_user:alone", r"cannot be called with \(response, answer\).*def function\(response"),
    ],
)
def test_a_function_that_cannot_be_used_is_an_error_with_the_remedy(rewards: Registry, name: str, message: str) -> None:
    with pytest.raises(PluginError, match=message) as caught:
        rewards.check_options(REWARD, name, {})
    assert str(caught.value).startswith("model.reward: ")
    assert "\n" not in str(caught.value)


def test_a_function_has_no_options(rewards: Registry) -> None:
    with pytest.raises(ConfigError, match="unknown key 'scale'"):
        rewards.build(REWARD, "rewards_of_a_user:same", {"scale": 2}, CONTEXT)


def test_a_function_that_returns_no_number_is_named(rewards: Registry) -> None:
    reward = rewards.build(REWARD, "rewards_of_a_user:nothing", {}, CONTEXT)
    with pytest.raises(PluginError, match="reward 'rewards_of_a_user:nothing' returned None — return a float"):
        reward.score([Prompt(0, "a?", "a", (1,))], ["a"])


def test_only_rewards_are_looked_up_as_functions(rewards: Registry) -> None:
    with pytest.raises(PluginError, match="no loaded plugin offers recovery"):
        rewards.get(RECOVERY, "rewards_of_a_user:same")
