"""From a command line to a command: compose the configuration, explain what is wrong with it, run.

An error that a user can mend is printed as ``error: ...`` and ends with exit status 1, without a traceback.
"""
import difflib
import functools
import re
import sys
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.schema import SCHEMAS, register

HYDRA_VERSION = "1.3"
RUN_CONFIG = "config"
ERRORS = (HydraException, OmegaConfBaseException)
GROUPS = Path(__file__).parent
FLAGS = ("help", "hydra_help", "cfg", "info", "multirun", "shell_completion")
NEAR = 3


class ConfigError(ValueError):
    """A setting is unknown, of the wrong type, or missing; the message names it and the near ones."""


def command(config_name):
    """Decorate the main function of a command.

    Parameters
    ----------
    config_name : str
        A key of `conf.schema.SCHEMAS`, with a file conf/<config_name>.yaml.

    Returns
    -------
    decorator
        Of a function that takes the configuration, an instance of the schema's dataclass. What it makes is called
        without arguments, reads ``sys.argv``, and ends with `SystemExit` where something failed.
    """
    def decorate(main):
        @functools.wraps(main)
        def run():
            arguments = get_args_parser().parse_args()
            if any(getattr(arguments, flag) for flag in FLAGS):
                register()
                task = lambda cfg: _guarded(main, OmegaConf.to_object(cfg))  # noqa: E731
                return hydra.main(version_base=HYDRA_VERSION, config_path="pkg://conf", config_name=config_name)(task)()
            return _guarded(lambda overrides: main(configuration(config_name, overrides)), arguments.overrides)
        return run
    return decorate


def _guarded(main, argument):
    """Call, and turn an error that teaches into one line and an exit status.

    Errors raised on purpose are subclasses of `ValueError` of our own; anything else keeps its traceback.
    """
    try:
        return main(argument)
    except ValueError as error:
        if type(error).__module__.split(".")[0] not in ("conf", "data", "models", "znn"):
            raise
        sys.exit(f"error: {error}")


def configuration(config_name, overrides=()):
    """The configuration of a command as an instance of its dataclass.

    Parameters
    ----------
    config_name : str
    overrides : sequence of str
        As on the command line. With ``resume=<run>`` the configuration stored in that folder is the base, in place
        of conf/<config_name>.yaml.

    Raises
    ------
    ConfigError
    """
    overrides = list(overrides)
    cfg = _explained(config_name, overrides)
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        choices = _choices(missing[0])
        hint = f"{missing[0]}={choices[0] if choices else '...'}"
        among = f" (there are: {', '.join(choices)})" if choices else ""
        raise ConfigError(f"no value for {', '.join(missing)}: give it as {hint}{among}")
    try:
        return OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from error


def compose(config_name, overrides):
    """Compose without explaining: a DictConfig of the schema, or an error of Hydra or OmegaConf."""
    cfg = _composed(config_name, overrides)
    # Hydra lets "+key=value" add anything; the schema, given plain values, does not.
    return OmegaConf.merge(OmegaConf.structured(SCHEMAS[config_name]), OmegaConf.to_container(cfg))


def _composed(config_name, overrides, **options):
    register()
    GlobalHydra.instance().clear()
    stored = _resumed(overrides)
    if stored is None:
        context = hydra.initialize_config_module("conf", version_base=HYDRA_VERSION)
    else:
        context = hydra.initialize_config_dir(str(stored.parent.absolute()), version_base=HYDRA_VERSION)
    with context:
        return hydra.compose(config_name if stored is None else RUN_CONFIG, list(overrides), **options)


def _resumed(overrides):
    """The configuration file of the run that ``resume=`` names, or None."""
    folder = next((o.partition("=")[2] for o in overrides if re.match(r"\+*resume=.", o)), "null").strip("'\"")
    if folder in ("null", ""):
        return None
    path = Path(folder) / f"{RUN_CONFIG}.yaml"
    if not path.is_file():
        raise ConfigError(f"resume={folder}: expected a folder of a run with a file {path.name}, found none; "
                          "give the folder that the run wrote, such as runs/<name>")
    return path


def _explained(config_name, overrides):
    """`compose`, or a `ConfigError` about the first override that does not fit."""
    try:
        return compose(config_name, overrides)
    except ERRORS as error:
        failure = error
    fitting = [o for o in overrides if re.match(r"\+*resume=", o)]
    for override in [o for o in overrides if o not in fitting]:
        try:
            compose(config_name, [*fitting, override])
        except ERRORS as error:
            raise ConfigError(_explain(error, override, config_name, fitting)) from error
        fitting.append(override)
    raise ConfigError(_first_line(failure)) from failure


def _explain(error, override, config_name, fitting):
    key, _, value = override.lstrip("+~").partition("=")
    if isinstance(error, MissingConfigException) and error.options is not None:
        return _unknown(f"{override}: {key.partition('@')[0]} has no choice", value, error.options, all_of_them=True)
    full_key = re.search(r"^\s*full_key: (\S+)", str(error), re.MULTILINE)
    if re.search("Could not override|not in struct|Key '.*' not in|No match in the defaults", str(error)):
        culprit = full_key[1] if full_key and _choices(key.partition("@")[0]) else key
        where = f"{override}: " if culprit != key else ""
        return _unknown(f"{where}no setting is called", culprit, _known(config_name, fitting))
    return f"{override}: {_first_line(error.__cause__ or error)}"


def _unknown(what, name, known, all_of_them=False):
    """A message that names what is near: by the whole name, and by its last part."""
    last = name.rpartition(".")[2]
    near = difflib.get_close_matches(name, known, 1, 0.6)
    for part in difflib.get_close_matches(last, {_last_part(k) for k in known}, NEAR, 0.7):
        near += [k for k in known if _last_part(k) == part and k not in near]
    hint = f"did you mean {' or '.join(near[:NEAR])}? " if near else ""
    there = known if all_of_them else _siblings(name, known)
    rest = f"There are: {', '.join(there)}" if all_of_them or not near else ""
    return f"{what} {name!r}; {hint}{rest}".rstrip("; ").rstrip()


def _siblings(name, known):
    """The known keys of the deepest group that `name` would be in."""
    parent = name.rpartition(".")[0]
    while parent and parent not in known:
        parent = parent.rpartition(".")[0]
    return [k for k in known if k.rpartition(".")[0] == parent and "@" not in k]


def _last_part(key):
    return key.partition("@")[0].rpartition(".")[2]


def _known(config_name, fitting):
    """Every key that can be set, dotted, and every choice of a group, such as ``trainer@stages.vd2d.trainer``."""
    cfg = _composed(config_name, fitting, return_hydra_config=True)
    choices = [key for key in cfg.hydra.runtime.choices if not key.startswith("hydra/")]
    cfg = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    return sorted({*_dotted(OmegaConf.to_container(cfg)), *choices})


def _dotted(node, prefix=""):
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")


def _choices(group):
    """Names of the files of a group; none when there is no such group."""
    return sorted(p.stem for p in (GROUPS / group).glob("*.yaml"))


def _first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    key = next((line.partition(": ")[2] for line in lines if line.startswith("full_key: ")), "")
    return f"{key}: {lines[0]}" if key and key not in lines[0] else lines[0]
