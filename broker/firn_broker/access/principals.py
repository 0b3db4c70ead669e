"""The principal of a client certificate, by Kafka's rules (``ssl.principal.mapping.rules``, KIP-371).

A rule is ``DEFAULT``, which takes the distinguished name as it is, or ``RULE:pattern/replacement/[LU]``. The first rule
whose pattern matches the whole name decides. Patterns have RE2's syntax: a name cannot make them slow, and they have no
back-references and no lookaround.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import re2

from firn.model.errors import InvalidSpecError
from firn_broker.access.mechanisms.exchange import AuthenticationError

Subject = Sequence[Sequence[tuple[str, str]]]
"""The subject of a certificate, as `ssl.SSLSocket.getpeercert` returns it."""
MOST_NAME, MOST_RULES = 1024, 8192
"""Most characters of a distinguished name and its principal, and of all rules."""
_KEYWORDS: Mapping[str, str] = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_OIDS: Mapping[str, str] = {
    "businessCategory": "2.5.4.15",
    "description": "2.5.4.13",
    "dnQualifier": "2.5.4.46",
    "emailAddress": "1.2.840.113549.1.9.1",
    "generationQualifier": "2.5.4.44",
    "givenName": "2.5.4.42",
    "initials": "2.5.4.43",
    "name": "2.5.4.41",
    "organizationIdentifier": "2.5.4.97",
    "postalCode": "2.5.4.17",
    "pseudonym": "2.5.4.65",
    "serialNumber": "2.5.4.5",
    "surname": "2.5.4.4",
    "title": "2.5.4.12",
}
_UTF8, _PRINTABLE, _IA5 = 0x0C, 0x13, 0x16
_TYPES: Mapping[str, int] = {"dnQualifier": _PRINTABLE, "emailAddress": _IA5, "serialNumber": _PRINTABLE}
"""Types of the values whose type RFC 5280 fixes. For all others, UTF8String is what CAs must write today."""
_SPECIAL = re.compile(r'[,+"\\<>;=#]|^ | $')
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|$)"
)
_PIECE = re.compile(r"\\(?P<escaped>.)|\$(?P<group>\d+)|(?P<literal>.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: Any
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """Return the principal of a name; None if the rule does not match."""
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        text = "".join(_expanded(piece, found, self.pattern.groups) for piece in _PIECE.finditer(self.replacement))
        return text.lower() if self.case == "L" else text.upper() if self.case == "U" else text


class PrincipalRules:
    """Parsed rules."""

    def __init__(self, rules: Sequence[str]) -> None:
        """Parse rules; one text may have several, with commas between them, as in Kafka. Raises InvalidSpecError."""
        text, place = ",".join(rules), 0
        if len(text) > MOST_RULES:
            raise InvalidSpecError(f"principalRules: {len(text)} characters; shorten them to {MOST_RULES}")
        parsed: list[_Rule | None] = []
        while place < len(text):
            found = _RULE.match(text, place)
            if found is None:
                raise InvalidSpecError(
                    f"principalRules: {text[place : place + 100]!r} is no rule; write DEFAULT or RULE:pattern/replacement/, and"
                    " L or U behind it for lower or upper case"
                )
            parsed.append(
                None if found["default"] else _Rule(_compiled(found["pattern"]), found["replacement"], found["case"])
            )
            place = found.end()
        if not parsed:
            raise InvalidSpecError("principalRules has no rule; write DEFAULT to use the whole name of the certificate")
        self._rules = tuple(parsed)

    def principal(self, subject: Subject) -> str:
        """Return the principal of a certificate. Raises AuthenticationError if no rule matches or the name is unusable."""
        name = distinguished_name(subject)
        if not name or len(name) > MOST_NAME or _CONTROL.search(name):
            raise _rejected(
                f"a certificate whose subject is empty, has control characters, or more than {MOST_NAME} characters"
            )
        for rule in self._rules:
            principal = name if rule is None else rule.apply(name)
            if principal is None:
                continue
            if not principal or len(principal) > MOST_NAME:
                raise _rejected(f"certificate {name!r}: its rule makes an empty or a long name")
            return f"User:{principal}"
        raise _rejected(f"certificate {name!r}: no rule of principalRules matches")


def distinguished_name(subject: Subject) -> str:
    """Return a subject in the form of RFC 2253, as Java writes it (``X500Principal.getName``).

    Java writes attributes without a keyword in RFC 2253 as the bytes of their value. Python does not say the type of such a
    value, which is the first of these bytes.
    """
    return ",".join("+".join(_attribute(name, value) for name, value in each) for each in reversed(subject))


def _attribute(name: str, value: str) -> str:
    keyword = _KEYWORDS.get(name)
    if keyword is None:
        oid = _OIDS.get(name, name)
        return f"{oid}=#{_encoded(_TYPES.get(name, _UTF8), value).hex()}"
    return f"{keyword}={_SPECIAL.sub(lambda found: chr(92) + found[0], value)}"


def _encoded(kind: int, value: str) -> bytes:
    """Return a value in DER."""
    content = value.encode()
    size = len(content)
    if size < 0x80:
        return bytes((kind, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((kind, 0x80 | len(length))) + length + content


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidSpecError(
            f"principalRules: RE2 rejects the pattern {pattern!r}: {error}; write it without back-references and lookaround"
        ) from error


def _expanded(piece: re.Match[str], found: Any, groups: int) -> str:
    """Return the text of one piece of a replacement, in Java's syntax (``Matcher.appendReplacement``).

    A number without a group is literal text, as in Kafka's ``SslPrincipalMapper.java``.
    """
    digits = piece["group"]
    if digits is None:
        return piece["literal"] if piece["escaped"] is None else piece["escaped"]
    used = len(digits)
    while used > 1 and int(digits[:used]) > groups:
        used -= 1
    number = int(digits[:used])
    return f"${digits}" if number > groups else (found.group(number) or "") + digits[used:]


def _rejected(reason: str) -> AuthenticationError:
    return AuthenticationError("the broker does not accept the certificate of the client; check its subject", reason)
