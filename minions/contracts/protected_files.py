"""Names of files that matter beyond a step: what configures tools outside, and what is secret.

One list for both directions: tools do not write what configures, and do not read what is secret,
unless the recipe opens it by name. The sandboxes of commands go by the same list. Standard library
only: the supervisor of sandboxes reads it, too.
"""

from __future__ import annotations

import fnmatch
import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

CONFIGURES: Final[Mapping[str, str]] = {
    "Minions and other agents": """
        minions.toml recipes/*.yaml recipes/*.yml mcp.lock.json .mcp.json mcp.json AGENTS.md
        AGENT.md CLAUDE*.md GEMINI.md .claude/ .cursor/ .cursorrules .aider* .codex/ .continue/
        .gemini/ .windsurf* .windsurf/ .roo/ .roo* .clinerules/ .junie/ .kiro/ .opencode/
        opencode.json*
    """,
    "version control": """
        .git/ .gitmodules .gitconfig .githooks/ .husky/ .huskyrc* .lefthook/ lefthook*.y*ml
        .lefthook*.y*ml lefthook*.toml lefthook*.json .overcommit.y*ml .pre-commit-config.y*ml
        .pre-commit-hooks.y*ml .lintstagedrc* .hg/ .hgrc .svn/ .jj/ .bzr/
    """,
    "builds": """
        Makefile Makefile.* GNUmakefile* *.mk *.mak CMakeLists.txt *.cmake CMakePresets.json
        CMakeUserPresets.json meson.build meson_options.txt configure configure.ac BUILD
        BUILD.bazel WORKSPACE WORKSPACE.bazel MODULE.bazel .bazelrc .bazelversion BUCK
        .buckconfig* SConstruct SConscript wscript Justfile .justfile Taskfile*.y*ml magefile.go
        Rakefile Rakefile.* Gemfile Gemfile.* *.gemspec .rubocop*.y*ml Podfile Fastfile
        build.gradle* settings.gradle* gradle.properties init.gradle* gradlew* gradle/wrapper/
        pom.xml mvnw* .mvn/ build.xml build.sbt project.clj Cargo.toml .cargo/ build.rs
        rust-toolchain* go.mod go.work Setup.hs stack.yaml cabal.project* mix.exs rebar.config*
        dune-project Package.swift composer.json *.csproj *.fsproj *.vbproj *.vcxproj *.sln
        *.slnx *.props *.targets global.json nuget.config *.nix flake.lock
    """,
    "Python": """
        pyproject.toml setup.py setup.cfg tox.ini tox.toml noxfile.py conftest.py pytest.ini
        .pytest.ini pytest.toml mypy.ini .mypy.ini pylintrc* .pylintrc* .flake8 .coveragerc*
        fabfile.py dodo.py hatch_build.py pdm_build.py uv.toml .python-version Pipfile
        sitecustomize.py usercustomize.py *.pth *._pth pyvenv.cfg pip.conf pip.ini bin/activate*
        bin/Activate* Scripts/activate* .venv/ venv/ .pdbrc* .ipython/ .jupyter/
        jupyter_*config.* *.pyc *.pyo
    """,
    "JavaScript": """
        package.json .npmrc .yarnrc* .yarn/ .pnp.* .pnpmfile.cjs bunfig.toml pnpm-workspace.yaml
        deno.json* lerna.json nx.json turbo.json* *.config.js *.config.cjs *.config.mjs
        *.config.ts *.config.cts *.config.mts .eslintrc* .prettierrc* .stylelintrc* .babelrc*
        .swcrc .mocharc* .nycrc* .commitlintrc* .releaserc* .czrc Gruntfile.* gulpfile.*
        Jakefile Jakefile.* .nvmrc .node-version .noderc
    """,
    "shells and environments": """
        .env*/ .envrc .flaskenv .tool-versions mise.toml .mise* .mise/ .rtx*.toml .ruby-version
        .java-version .sdkmanrc .bashrc .bash_* .profile .zshrc .zshenv .zprofile .zlogin
        .zlogout .cshrc .tcshrc .login .kshrc .inputrc .xinitrc .xprofile .xsession* .curlrc
        .wgetrc .netrc .tmux.conf .screenrc .gdbinit .lldbinit .irbrc .pryrc .Rprofile .Renviron
        .ssh/ .gnupg/ .aws/ .kube/ .docker/ .config/fish/ .config/systemd/ .config/autostart/
        .local/bin/
    """,
    "editors": """
        .vscode/ *.code-workspace .idea/ .fleet/ .zed/ .vs/ .nova/ .settings/
        .externalToolBuilders/ .devcontainer/ .devcontainer.json devcontainer.json
        *.sublime-project .dir-locals*.el .emacs* .emacs.d/ .vimrc .gvimrc .exrc .nvimrc
        .nvim.lua .lvimrc .vim/ .gitpod.y*ml .replit replit.nix
    """,
    "CI and deployment": """
        .github/ .gitlab-ci*.y*ml .gitlab/ .forgejo/ .gitea/ .circleci/ .buildkite/ .travis.y*ml
        .drone.y*ml .woodpecker/ .woodpecker*.y*ml .cirrus.* azure-pipelines*.y*ml
        bitbucket-pipelines.y*ml appveyor.y*ml .appveyor.y*ml Jenkinsfile Jenkinsfile.*
        cloudbuild.y*ml buildspec.y*ml .readthedocs.y*ml renovate.json* Dockerfile
        Dockerfile[.-]* *.Dockerfile Containerfile Containerfile[.-]* compose*.y*ml
        docker-compose*.y*ml docker-bake.* Vagrantfile Tiltfile skaffold.y*ml devfile.y*ml
        Procfile Procfile.* netlify.toml vercel.json fly.toml render.y*ml serverless.*
        ansible.cfg .terraformrc terraform.rc Pulumi*.y*ml heroku.y*ml
    """,
}
"""What runs code, or changes what a tool does, when a person does their usual work.

Glob patterns of names, with or without the folder before. `/` at the end: a folder and all in it.
"""

SECRETS: Final[Mapping[str, str]] = {
    "environments": ".env*/ .envrc .flaskenv .Renviron local.settings.json",
    "keys": """
        id_rsa id_rsa[._-]* id_dsa id_dsa[._-]* id_ecdsa id_ecdsa[._-]* id_ed25519
        id_ed25519[._-]* *_rsa *_ed25519 *.pem *.key *.p8 *.p12 *.pfx *.jks *.keystore *.ppk
        *.kdb *.kdbx *.ovpn *.agekey secring.* .ssh/ .gnupg/ .password-store/
    """,
    "logins": """
        .netrc _netrc .git-credentials .git/config .npmrc .pypirc .yarnrc* .pgpass pgpass.conf
        .my.cnf .mylogin.cnf .htpasswd .htdigest .msmtprc .fetchmailrc .wgetrc .curlrc
        .dockercfg .docker/ .dockerconfigjson .s3cfg .boto .passwd-s3fs .vault-token
        .terraformrc credentials.tfrc.json nuget.config pip.conf pip.ini auth.json
        .gem/credentials .cargo/credentials* .m2/settings*.xml .config/gh/ .config/hub
        .smbcredentials .*_history .lesshst .viminfo
    """,
    "clouds": """
        .aws/ .azure/ .kube/ kubeconfig kubeconfig.y*ml kubeconfig.json *.kubeconfig
        .config/gcloud/ .oci/ .config/doctl/ .config/op/ .databrickscfg .snowsql/ .fly/
        service-account*.json service_account*.json serviceaccount*.json *-service-account*.json
        *_service_account*.json *-adminsdk-*.json gcp-key*.json client_secret*.json
        application_default_credentials.json credentials credentials*.json *-credentials.json
        *_credentials.json credentials.y*ml* *.tfstate *.tfstate.* *.tfvars *.tfvars.json
    """,
    "applications": """
        secrets.y*ml secrets.json secrets.toml secret.y*ml secret.json *.secret *.secrets
        .secrets/ .secrets* master.key wp-config.php token.json token.pickle cookies.txt
        cookies.sqlite
    """,
}
"""What holds keys, passwords or tokens; patterns as above."""

HARMLESS: Final = (
    ".env.example .env.sample .env.template .env.dist .env.defaults .envrc.example *.pub"
)
"""Names that the patterns above do not mean: examples without values, and public keys."""

_PATTERNS: Final = {
    "type": "array",
    "items": {"type": "string", "pattern": r"^\S+$", "maxLength": 200},
    "maxItems": 100,
}
ALLOW_CONFIG: Final[Mapping[str, object]] = {
    "schema": _PATTERNS,
    "description": "Glob patterns of names or paths that may be written although they configure "
    "tools outside; `.git` is never.",
}
ALLOW_SECRETS: Final[Mapping[str, object]] = {
    "schema": _PATTERNS,
    "description": "Glob patterns of names or paths that may be used although they are taken for "
    "secrets.",
}
"""Schema and description of the options of toolsets by which a recipe opens what is closed."""
OPENING_OPTIONS: Final = frozenset({"allow_config", "allow_secrets"})
"""Their names. A recipe says them as they are: no value of a run decides about them."""

REFUSED_ENDING: Final = ".refused"
"""What is added to the name of a file that a command was not to make or change."""

_SIGNS: Final = re.compile(r"[*?\[]")
GIT_NAMES: Final = frozenset({".git", "git~1", "git~2", "git~3", "git~4"})
"""The name, and those by which Windows may know it."""


def folded_name(name: str) -> str:
    """The name as the most careless file system compares it.

    Without case and characters that nobody sees; also without the dots, blanks and streams that
    Windows leaves out at the end.
    """
    if name.isascii():
        plain = name.lower()
    else:
        seen = "".join(each for each in unicodedata.normalize("NFKC", name) if not _is_unseen(each))
        plain = unicodedata.normalize("NFKC", seen.casefold())
    if ":" in plain:
        plain = plain.partition(":")[0] or plain
    return plain.rstrip(". ") or plain


def _is_unseen(character: str) -> bool:
    """Whether file systems that compare without case leave it out."""
    code = ord(character)
    is_mark = code in (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5)
    return is_mark or 0xFE00 <= code <= 0xFE0F or unicodedata.category(character) == "Cf"


def is_git_name(name: str) -> bool:
    """Whether some file system takes it for `.git`."""
    return folded_name(name) in GIT_NAMES


def configures(
    parts: Sequence[str], opened: Sequence[str] = (), *, above: int = 0, is_folder: bool = False
) -> bool:
    """Whether a path, or a folder above it, configures tools outside.

    Args:
        parts: The names that lead to it, after those of its root.
        opened: Patterns of what is open all the same; never of what Git trusts.
        above: How many of the first names are the root's own; of those only folders count.
        is_folder: Whether it is one: names of files do not mean it.
    """
    names = [folded_name(each) for each in parts]
    if not GIT_NAMES.isdisjoint(names):
        return True
    if names and names[-1].endswith(REFUSED_ENDING):
        return False
    return _is_meant(_CONFIGURING, names, opened, above, is_folder=is_folder)


def entry_configures(above: Sequence[str], name: str, *, is_folder: bool) -> bool:
    """Whether an entry of a folder configures tools outside, whatever the folders above are.

    Args:
        above: Folded names of one or two folders above it.
        name: Its folded name.
    """
    return _is_entry(_CONFIGURING, above, name, is_folder=is_folder) and not name.endswith(
        REFUSED_ENDING
    )


def entry_is_secret(above: Sequence[str], name: str, *, is_folder: bool) -> bool:
    """Whether an entry of a folder is taken for a secret; arguments as above."""
    return _is_entry(_SECRET, above, name, is_folder=is_folder)


def _is_entry(patterns: str, above: Sequence[str], name: str, *, is_folder: bool) -> bool:
    if not _compiled(patterns).match_last([*above, name], is_folder=is_folder):
        return False
    return is_folder or not _compiled(HARMLESS).match_last([name], is_folder=False)


def is_secret(
    parts: Sequence[str], opened: Sequence[str] = (), *, above: int = 0, is_folder: bool = False
) -> bool:
    """Whether a path, or a folder above it, is taken for a secret; arguments as above."""
    names = [folded_name(each) for each in parts]
    return _is_meant(_SECRET, names, opened, above, is_folder=is_folder)


def is_opened(parts: Sequence[str], opened: Sequence[str]) -> bool:
    """Whether a pattern opens the path, or a folder above it."""
    return _opens([folded_name(each) for each in parts], opened)


def _is_meant(
    patterns: str, names: Sequence[str], opened: Sequence[str], above: int, *, is_folder: bool
) -> bool:
    at = _compiled(patterns).first_match(names, above, is_folder=is_folder)
    if at is None:
        return False
    if not is_folder and _compiled(HARMLESS).match_last(names[-1:], is_folder=False):
        return False
    # What stands above the root is opened by the name that counts there, and by no other.
    return not _opens(names[at : at + 1] if at < above else names[above:], opened)


def _opens(names: Sequence[str], opened: Sequence[str]) -> bool:
    """Whoever opens a name opens what is in a folder of that name, too."""
    wanted = " ".join(f"{each.rstrip('/')}/" for each in opened if " " not in each)
    return _compiled(wanted).first_match(names, 0, is_folder=True) is not None


def matches_any(parts: Sequence[str], patterns: Iterable[str]) -> bool:
    """Whether a glob pattern matches the path, a folder above it, or the name of one of them.

    Case is ignored: on some file systems `.GIT` is `.git`.
    """
    folded = [each.casefold() for each in patterns]
    for end in range(1, len(parts) + 1):
        names = (parts[end - 1].casefold(), "/".join(parts[:end]).casefold())
        if any(fnmatch.fnmatchcase(name, each) for each in folded for name in names):
            return True
    return False


class _Names:
    """Patterns of one name. Almost no name matches, so what is cheap is looked at first."""

    def __init__(self, patterns: Iterable[str]) -> None:
        exact, begins, ends, others = set[str](), list[str](), list[str](), dict[str, list[str]]()
        for each in patterns:
            if not _SIGNS.search(each):
                exact.add(each)
            elif each.endswith("*") and not _SIGNS.search(each[:-1]):
                begins.append(each[:-1])
            elif each.startswith("*") and not _SIGNS.search(each[1:]):
                ends.append(each[1:])
            else:  # by the character that names begin with; by "" where it may be any
                others.setdefault("" if _SIGNS.match(each) else each[0], []).append(each)
        self._exact = frozenset(exact)
        self._begins = tuple(begins)
        self._ends = tuple(ends)
        self._others = {
            first: re.compile("|".join(map(fnmatch.translate, of_first)))
            for first, of_first in others.items()
        }

    def match(self, name: str) -> bool:
        """Whether one matches."""
        if name in self._exact or name.startswith(self._begins) or name.endswith(self._ends):
            return True
        for first in (name[:1], ""):
            found = self._others.get(first)
            if found is not None and found.match(name) is not None:
                return True
        return False

    def hold(self, name: str) -> bool:
        """Whether it stands among them as it is."""
        return name in self._exact


class _Patterns:
    """Patterns as the lists above have them."""

    def __init__(self, text: str) -> None:
        given = [each.strip("/") + "/" * each.endswith("/") for each in text.lower().split()]
        single = [each for each in given if "/" not in each[:-1]]
        self._folders = _Names(each[:-1] for each in single if each.endswith("/"))
        self._files = _Names(each for each in single if not each.endswith("/"))
        self._paths = [
            (tuple(_Names([name]) for name in each.rstrip("/").split("/")), each.endswith("/"))
            for each in given
            if "/" in each[:-1]
        ]
        self._last = _Names(each.rstrip("/").rpartition("/")[2] for each in given)
        """Of all, the last names: a name that is none of them needs no further look."""

    def first_match(self, names: Sequence[str], above: int, *, is_folder: bool) -> int | None:
        """Which of the folded names one matches; None: none of them.

        Args:
            above: Of so many of the first names only folders count that a pattern names exactly.
        """
        last = len(names) - 1
        for at, name in enumerate(names):
            if at < above:
                if self._folders.hold(name):
                    return at
            elif self._matches_at(names, at, is_folder=is_folder or at < last):
                return at
        return None

    def match_last(self, names: Sequence[str], *, is_folder: bool) -> bool:
        """Whether one matches the last of the folded names."""
        return self._matches_at(names, len(names) - 1, is_folder=is_folder)

    def _matches_at(self, names: Sequence[str], at: int, *, is_folder: bool) -> bool:
        name = names[at]
        return self._last.match(name) and (
            self._folders.match(name)
            or (not is_folder and self._files.match(name))
            or self._is_path(names, at, is_file=not is_folder)
        )

    def _is_path(self, names: Sequence[str], at: int, *, is_file: bool) -> bool:
        return any(
            (is_file or of_folder)
            and at + 1 >= len(path)
            and all(
                part.match(name)
                for part, name in zip(path, names[at + 1 - len(path) : at + 1], strict=True)
            )
            for path, of_folder in self._paths
        )


@functools.lru_cache(maxsize=64)
def _compiled(patterns: str) -> _Patterns:
    return _Patterns(patterns)


_CONFIGURING: Final = " ".join(CONFIGURES.values())
_SECRET: Final = " ".join(SECRETS.values())
