"""Signatures of bundles: OpenSSF model signing with a key of one's own, offline.

The signature covers every file of the bundle. It is made and checked by `model-signing` (the extra
`sign`), whose own command line can check it too. A bundle is first checked by its lock, since
`model-signing` ignores some names, such as `.git`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from zoo.bundle import SIGNATURE_NAME, Bundle, read_bundle
from zoo.errors import Place, WeightsError, ZooError
from zoo.files.atomic import new_file

if TYPE_CHECKING:
    from types import ModuleType

MAX_BYTES = 1 << 22
_PRIVATE = "it is a private key on an elliptic curve, in PEM, without a password"
_OF_ANOTHER = "ask who signed it for the public key, by another way than the bundle has come"
_PUBLIC = "it is the public key, on an elliptic curve, in PEM"


def sign_bundle(path: Path, private_key: Path) -> None:
    """Check a bundle and sign it. An existing signature is replaced.

    Args:
        path: the bundle.
        private_key: a PEM file with an elliptic curve key without a password.

    Raises:
        WeightsError: the bundle is not what its lock says.
        ZooError: the key cannot be used, or `model-signing` is not installed.
    """
    model_signing = _library()
    read_bundle(path)
    _check_key(private_key)
    config = model_signing.signing.Config()
    with _as_zoo_error("the key cannot be used", private_key, _PRIVATE):
        config.use_elliptic_key_signer(private_key=private_key)
    with _as_zoo_error("cannot sign", path):
        config.set_hashing_config(_all_but_the_signature(model_signing))
        with TemporaryDirectory() as elsewhere:
            made = Path(elsewhere) / SIGNATURE_NAME
            config.sign(path, made)
            data = made.read_bytes()
    with new_file(path / SIGNATURE_NAME) as file:
        file.write(data)


def verify_signature(path: Path, public_key: Path) -> Bundle:
    """Read a bundle, after checking it and its signature.

    Args:
        path: its folder.
        public_key: the file of the key that it should have been signed with, in PEM.

    Raises:
        WeightsError: there is no signature, it was made with another key or over other files, or
            the bundle is not what its lock says.
        ZooError: the key cannot be used, or `model-signing` is not installed.
    """
    model_signing = _library()
    bundle = read_bundle(path)
    signature = path / SIGNATURE_NAME
    if not bundle.is_signed or signature.stat().st_size > MAX_BYTES:
        hint = "`zoo bundle sign` makes one; without `--key` only the files are checked"
        raise WeightsError("there is no signature", Place(str(signature)), hint)
    _check_key(public_key)
    config = model_signing.verifying.Config()
    with _as_zoo_error("the key cannot be used", public_key, _PUBLIC):
        config.use_elliptic_key_verifier(public_key=public_key)
    what = "the signature is not that of the key over these files"
    with _as_zoo_error(what, signature, _OF_ANOTHER):
        config.set_hashing_config(_all_but_the_signature(model_signing)).verify(path, signature)
    return bundle


def _all_but_the_signature(model_signing: ModuleType) -> Any:
    config = model_signing.hashing.Config()
    return config.set_ignored_paths(paths=[Path(SIGNATURE_NAME)], ignore_git_paths=False)


def _library() -> ModuleType:
    try:
        import model_signing
    except ModuleNotFoundError as error:
        message = f"signing needs the package `{error.name}`, which is not installed"
        raise ZooError(message, help="pip install 'zoo[sign]'") from None
    return model_signing


def _check_key(key: Path) -> None:
    try:
        key.open("rb").close()
    except FileNotFoundError:
        raise ZooError("there is no such key", Place(str(key))) from None
    except OSError as error:
        message = f"the key cannot be read: {error.strerror}"
        raise ZooError(message, Place(str(key))) from None


@contextmanager
def _as_zoo_error(message: str, path: Path, help: str | None = None) -> Generator[None]:
    """Convert the errors of the library, which are of many types."""
    try:
        yield
    except ZooError:
        raise
    except Exception as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        # An AttributeError, for a key of another kind, has no words for a user.
        told = message if isinstance(error, AttributeError) else f"{message}: {reason}"
        raise WeightsError(told, Place(str(path)), help) from None
