"""The names of client certificates: the form of RFC 2253 as Java writes it, and Kafka's rules for principals."""

import time

import pytest

from firn.model.errors import InvalidSpecError
from firn_broker.access.mechanisms.exchange import AuthenticationError
from firn_broker.access.principals import MOST_NAME, MOST_RULES, PrincipalRules, Subject, distinguished_name


def subject(**attributes: str) -> Subject:
    return tuple(((name, value),) for name, value in attributes.items())


CHECKOUT = subject(
    countryName="DE", organizationName="Acme", organizationalUnitName="ServiceUsers", commonName="Checkout"
)

NAMES = {
    "the last attribute comes first": (CHECKOUT, "CN=Checkout,OU=ServiceUsers,O=Acme,C=DE"),
    "special characters are escaped": (
        subject(
            stateOrProvinceName="Bavaria",
            localityName="Mü",
            organizationName="Acme, Inc.",
            organizationalUnitName="A+B",
            commonName='x "y" <z>; \\ #a=b',
        ),
        'CN=x \\"y\\" \\<z\\>\\; \\\\ \\#a\\=b,OU=A\\+B,O=Acme\\, Inc.,L=Mü,ST=Bavaria',
    ),
    "an attribute of several values": (
        (
            (("commonName", "b"), ("organizationalUnitName", "a")),
            (("domainComponent", "example"),),
            (("userId", "u1"),),
            (("streetAddress", "s 1"),),
        ),
        "STREET=s 1,UID=u1,DC=example,CN=b+OU=a",
    ),
    "attributes without a keyword": (
        subject(
            emailAddress="a@b.example", serialNumber="12", title="Dr", givenName="é", surname="S", commonName="#lead"
        ),
        "CN=\\#lead,2.5.4.4=#0c0153,2.5.4.42=#0c02c3a9,2.5.4.12=#0c024472,2.5.4.5=#13023132,"
        "1.2.840.113549.1.9.1=#160b6140622e6578616d706c65",
    ),
    "outer spaces are escaped": (subject(commonName=" two  spaces "), "CN=\\ two  spaces\\ "),
    "attributes without a name": (
        ((("1.2.3.4.5", "v"),), (("dnQualifier", "q"),), (("commonName", "c"),)),
        "CN=c,2.5.4.46=#130171,1.2.3.4.5=#0c0176",
    ),
    "a long value": (subject(title="a" * 200), "2.5.4.12=#0c81c8" + "61" * 200),
}


@pytest.mark.parametrize(("certificate", "name"), NAMES.values(), ids=NAMES.keys())
def test_a_name_is_as_java_writes_it(certificate: Subject, name: str) -> None:
    """Java 17 wrote these names for certificates with these subjects (X500Principal.getName)."""
    assert distinguished_name(certificate) == name
    assert PrincipalRules(["DEFAULT"]).principal(certificate) == f"User:{name}"


RULES = {
    "a group": ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "Checkout"),
    "lower case": ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "checkout"),
    "upper case": ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/U", "CHECKOUT"),
    "two groups": ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/L", "checkout@serviceusers"),
    "the whole match": ("RULE:CN=.*/<$0>/", "<CN=Checkout,OU=ServiceUsers,O=Acme,C=DE>"),
    "the first rule that matches": ("RULE:^CN=admin,.*$/admin/, RULE:^.*OU=(.*?),.*$/$1/, DEFAULT", "ServiceUsers"),
    "the default after rules": ("RULE:^UID=.*$/x/,DEFAULT", "CN=Checkout,OU=ServiceUsers,O=Acme,C=DE"),
    "an escaped slash": (r"RULE:^CN=(\w+),.*$/a\/$1/", "a/Checkout"),
    "an escaped dollar": (r"RULE:^CN=(\w+),.*$/\$1/", "$1"),
    "a comma in the pattern": ("RULE:^CN=(.{1,20}),OU=.*$/$1/", "Checkout"),
    "a number without a group": ("RULE:^CN=(.*?),.*$/$1@$4/", "Checkout@$4"),
    "digits behind a group": ("RULE:^CN=(.*?),.*$/$123/", "Checkout23"),
    "no group at all": ("RULE:^CN=Checkout,.*$/$1/", "$1"),
    "an optional group": ("RULE:^CN=(x)?(.*?),.*$/$1$2/", "Checkout"),
    "a pattern that matches the end twice in Java": ("RULE:.*/one/", "one"),
}


@pytest.mark.parametrize(("rules", "name"), RULES.values(), ids=RULES.keys())
def test_rules_make_a_principal(rules: str, name: str) -> None:
    assert PrincipalRules([rules]).principal(CHECKOUT) == f"User:{name}"


def test_rules_may_be_a_list() -> None:
    rules = PrincipalRules(["RULE:^CN=admin,.*$/admin/", "RULE:^CN=(.*?),.*$/$1/L"])
    assert rules.principal(CHECKOUT) == "User:checkout"


@pytest.mark.parametrize(
    ("rules", "certificate"),
    [
        ("RULE:^CN=admin$/admin/", CHECKOUT),
        ("RULE:CN=Checkout/admin/", CHECKOUT),  # a part of the name is not enough
        ("RULE:^CN=(x)?.*$/$1/", CHECKOUT),
        ("DEFAULT", ()),
        ("DEFAULT", subject(commonName="a\nb")),
        ("DEFAULT", subject(commonName="a\x00b")),
        ("DEFAULT", subject(commonName="a" * MOST_NAME)),
        ("RULE:.*/$0$0/", subject(commonName="a" * (MOST_NAME - 10))),
    ],
)
def test_a_certificate_without_a_usable_name_fails(rules: str, certificate: Subject) -> None:
    with pytest.raises(AuthenticationError, match="the certificate of the client"):
        PrincipalRules([rules]).principal(certificate)


def test_an_escaped_value_cannot_add_an_attribute() -> None:
    rules = PrincipalRules(["RULE:^CN=([^,]*),OU=Admins$/$1/"])
    with pytest.raises(AuthenticationError):
        rules.principal(subject(commonName="x,OU=Admins"))
    with pytest.raises(AuthenticationError):
        rules.principal(subject(organizationalUnitName="Users", commonName="x,OU=Admins"))


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ([], "has no rule"),
        ([""], "has no rule"),
        (["default"], "is no rule"),
        (["RULE:a/b"], "is no rule"),
        (["RULE:a/b/X"], "is no rule"),
        (["DEFAULT RULE:a/b/"], "is no rule"),
        (["RULE:(/b/"], "RE2 rejects"),
        ([r"RULE:(a)\1/b/"], "RE2 rejects"),
        (["RULE:(?=a)/b/"], "RE2 rejects"),
        (["RULE:(((a{100}){100}){100})/b/"], "RE2 rejects"),
        (["RULE:" + "a" * MOST_RULES + "/b/"], "shorten them"),
    ],
)
def test_invalid_rules_are_reported(rules: list[str], problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=problem):
        PrincipalRules(rules)


def test_no_pattern_is_slow() -> None:
    rules = PrincipalRules(["RULE:^CN=(a+)+b$/$1/", "DEFAULT"])
    certificate, before = subject(commonName="a" * 1000), time.process_time()
    assert rules.principal(certificate).startswith("User:CN=")
    assert time.process_time() - before < 1
