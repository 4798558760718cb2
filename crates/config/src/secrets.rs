//! What is hidden when configurations are shown: one place decides by name and by look.
//!
//! A schema knows which of its keys are secrets. What it does not know, users' variables and addresses, is judged
//! here: [`names_a_secret`] by the words of a name, [`without_passwords`] by what is in an address. Rather too much
//! is hidden than too little.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// The mark that is shown in place of a secret.
pub const MASK: &str = "********";

/// What makes a name that of a secret, anywhere in it.
const PARTS: [&str; 8] = [
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PASSCODE",
    "CREDENTIAL",
    "APIKEY",
    "CONNECTION_STRING",
];

/// As [`PARTS`], as the end of a word of the name: `HF_TOKEN` and `AUTHTOKEN`, not `TOKENIZERS_PARALLELISM`.
const ENDS: [&str; 4] = ["TOKEN", "TOKENS", "PASS", "PWD"];

/// As [`PARTS`], as a whole word of the name: `WANDB_API_KEY` and `GITHUB_PAT`, not `KEYBOARD` and `PATH`.
const WORDS: [&str; 9] = [
    "KEY", "KEYS", "AUTH", "PAT", "DSN", "CRED", "CREDS", "JWT", "SAS",
];

/// Words that end like secrets and are none.
const HARMLESS_WORDS: [&str; 4] = ["BYPASS", "COMPASS", "ENCOMPASS", "SURPASS"];

/// Whole names that look like secrets and are none: directories.
const HARMLESS_NAMES: [&str; 2] = ["PWD", "OLDPWD"];

/// With one of these words a name counts or measures: its tokens and keys are those of a model, as in `MAX_TOKENS`.
const MEASURES: [&str; 13] = [
    "MAX", "MIN", "NUM", "N", "COUNT", "TOTAL", "LIMIT", "LENGTH", "LEN", "SIZE", "BUDGET", "PER",
    "AVG",
];

/// What names that count or measure are about.
const MEASURED: [&str; 4] = ["TOKEN", "TOKENS", "KEY", "KEYS"];

/// Whether something of this name, a variable most of all, probably holds a secret.
pub fn names_a_secret(name: &str) -> bool {
    let words = words(name);
    let upper = words.join("_");
    if HARMLESS_NAMES.contains(&upper.as_str()) {
        return false;
    }
    let measures = words.iter().any(|word| MEASURES.contains(&word.as_str()));
    PARTS.iter().any(|part| upper.contains(part))
        || words
            .iter()
            .map(|word| word.trim_end_matches(|c: char| c.is_ascii_digit()))
            .filter(|word| !(measures && MEASURED.contains(word)))
            .filter(|word| !HARMLESS_WORDS.contains(word))
            .any(|word| WORDS.contains(&word) || ENDS.iter().any(|end| word.ends_with(end)))
}

/// The words of a name in capitals: parted by what is neither letter nor digit, and by capitals within, `apiKey` and
/// `APIKey`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before: Option<char> = None;
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        let begins = before.is_some_and(|before| {
            c.is_ascii_uppercase()
                && (before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                        && chars.peek().is_some_and(char::is_ascii_lowercase)
                    || before.is_ascii_uppercase()
                        && chars.peek().is_some_and(char::is_ascii_lowercase))
        });
        if begins || !c.is_ascii_alphanumeric() {
            words.push(String::new());
        }
        if c.is_ascii_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.push(c.to_ascii_uppercase());
        }
        before = Some(c);
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether something of this name is the address of a proxy, in which a scheme may be left out.
fn names_a_proxy(name: &str) -> bool {
    words(name).iter().any(|word| word.ends_with("PROXY"))
}

/// The value of a variable for showing.
pub fn shown_variable<'v>(name: &str, value: &'v str) -> Cow<'v, str> {
    if value.is_empty() {
        Cow::Borrowed(value)
    } else if names_a_secret(name) {
        Cow::Borrowed(MASK)
    } else {
        shown_text(name, value)
    }
}

/// A text for showing that its name does not make a secret: passwords in addresses are hidden.
pub fn shown_text<'v>(name: &str, text: &'v str) -> Cow<'v, str> {
    match text.rsplit_once('@') {
        Some((_, host)) if !text.contains("://") && names_a_proxy(name) => {
            Cow::Owned(format!("{MASK}@{host}"))
        }
        _ => without_passwords(text),
    }
}

/// A text in which the addresses show no passwords: the user information of `scheme://user:password@host`, that of
/// `http(s)://token@host`, and parameters `?password=…` by their names. A user alone stays, and so does a container
/// (`abfss://container@account`).
pub fn without_passwords(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return Cow::Borrowed(text);
    }
    let shown: String = text
        .split_inclusive(char::is_whitespace)
        .map(shown_word)
        .collect();
    if shown == text {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(shown)
    }
}

/// [`without_passwords`] for a text without blanks in it.
fn shown_word(word: &str) -> Cow<'_, str> {
    let Some((first, _)) = word.split_once("://") else {
        return Cow::Borrowed(word);
    };
    let mut shown = String::with_capacity(word.len());
    shown.push_str(first);
    let mut before = first;
    let mut rest = &word[first.len()..];
    while let Some(after) = rest.strip_prefix("://") {
        shown.push_str("://");
        let next = after.find("://").unwrap_or(after.len());
        rest = match credentials_end(before, after, next) {
            Some(end) => {
                shown.push_str(MASK);
                &after[end..]
            }
            None => after,
        };
        let next = rest.find("://").unwrap_or(rest.len());
        before = &rest[..next];
        shown.push_str(&shown_parameters(before));
        rest = &rest[next..];
    }
    Cow::Owned(shown)
}

/// Position of the `@` after credentials in what follows a `scheme://`; `None` = there are none. `next` is where the
/// next such address begins.
fn credentials_end(scheme: &str, after: &str, next: usize) -> Option<usize> {
    let authority = &after[..after.find(['/', '?', '#']).unwrap_or(after.len())];
    // A password may hold what should have been written as %2F or %40.
    let last = || after[..next].rfind('@');
    if let Some(at) = authority.rfind('@') {
        return if authority[..at].contains(':') {
            last()
        } else {
            let web = ["http", "https"].iter().any(|web| scheme.ends_with(web));
            web.then_some(at)
        };
    }
    let (_, port) = authority.split_once(':')?;
    let is_port = port.chars().all(|c| c.is_ascii_digit());
    if is_port || authority.starts_with('[') {
        return None;
    }
    last()
}

/// An address with the values hidden of parameters whose names mark them as secrets.
fn shown_parameters(address: &str) -> Cow<'_, str> {
    let Some((path, query)) = address.split_once('?') else {
        return Cow::Borrowed(address);
    };
    let shown: Vec<Cow<'_, str>> = query
        .split('&')
        .map(|parameter| match parameter.split_once('=') {
            Some((name, value)) if !value.is_empty() && names_a_secret(name) => {
                Cow::Owned(format!("{name}={MASK}"))
            }
            _ => Cow::Borrowed(parameter),
        })
        .collect();
    Cow::Owned(format!("{path}?{}", shown.join("&")))
}

/// Whether what is below a key may be secret whatever its form, since the key is a secret's or that of variables.
pub(crate) fn is_place_of_secrets(key: &str) -> bool {
    matches!(key, "environment_variables" | "env") || names_a_secret(key)
}

/// A text that is in the wrong place, for quoting: no schema describes it, so besides passwords in
/// addresses everything is hidden behind a name that looks secret, in `NAME=value`, `NAME: value` and the like.
pub(crate) fn found_text(text: &str) -> Cow<'_, str> {
    let is_of_a_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    for (at, sign) in text.match_indices(['=', ':']) {
        let value = text[at + sign.len()..].trim_start();
        // An address, and a path in a container.
        if value.is_empty() || (sign == ":" && value.starts_with('/')) {
            continue;
        }
        let before = text[..at].trim_end_matches(|c: char| c.is_whitespace() || "\"'".contains(c));
        let name = before.rsplit(|c| !is_of_a_name(c)).next().unwrap_or("");
        if names_a_secret(name) {
            let shown = without_passwords(&text[..at]);
            return Cow::Owned(format!("{shown}{sign}{MASK}"));
        }
    }
    without_passwords(text)
}

/// Whether a text is what was shown in place of a secret, whole or in a variable or an address. A caller that sends it
/// back would store the mark.
pub fn is_masked(text: &str) -> bool {
    let has = |before: &str, after: &str| text.contains(&format!("{before}{MASK}{after}"));
    text == MASK
        || text.split_once('=').is_some_and(|(_, value)| value == MASK)
        || has("://", "@")
        || text.starts_with(&format!("{MASK}@"))
        || (text.contains("://") && has("=", ""))
}

/// Whether `shown` is how `text` is shown where it is hidden as a whole, as a variable, or in its addresses.
pub fn is_shown_as(text: &str, shown: &str) -> bool {
    let named = |name: &str| text.split_once('=').is_some_and(|(own, _)| own == name);
    shown == MASK
        || shown
            .strip_suffix(MASK)
            .and_then(|before| before.strip_suffix('='))
            .is_some_and(named)
        || without_passwords(text) == shown
        || shown_text("proxy", text) == shown
        || text
            .split_once('=')
            .is_some_and(|(name, value)| format!("{name}={}", shown_variable(name, value)) == shown)
}

/// Hides the passwords of addresses in every text of a value; the members of maps are looked at by their names.
pub(crate) fn mask_addresses(value: &mut Value) {
    mask_named_addresses("", value);
}

pub(crate) fn mask_named_addresses(name: &str, value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(shown) = shown_text(name, text) {
                *text = shown;
            }
        }
        Value::Array(items) => {
            for item in items {
                mask_named_addresses(name, item);
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                mask_named_addresses(name, member);
            }
        }
        _ => {}
    }
}

/// Hides the members of maps whose names look secret, however deep.
pub(crate) fn mask_members(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::Array(_) | Value::Object(_) => mask_members(member),
                    Value::Null => {}
                    other if names_a_secret(name) => *other = MASK.into(),
                    _ => {}
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask_members),
        _ => {}
    }
}

/// Hides variables that look secret wherever they are in a configuration: below `environment_variables`, and in the
/// containers of pod specs.
pub(crate) fn mask_all_variables(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, member) in members.iter_mut() {
                if key == "environment_variables" {
                    mask_variables(member);
                } else {
                    mask_all_variables(member);
                }
            }
            mask_container_variable(members);
        }
        Value::Array(items) => items.iter_mut().for_each(mask_all_variables),
        _ => {}
    }
}

/// Hides the values of all variables wherever they are in a configuration, as [`mask_all_variables`] does of some. Names
/// stay, and so does what is empty.
pub(crate) fn hide_variables(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, member) in members.iter_mut() {
                match (key.as_str(), &mut *member) {
                    ("environment_variables", _) => hide_values(member),
                    ("env", Value::Array(variables)) => {
                        for variable in variables {
                            hide_value(variable.get_mut("value"));
                        }
                    }
                    _ => hide_variables(member),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide_variables),
        _ => {}
    }
}

fn hide_values(value: &mut Value) {
    match value {
        Value::String(variable) => {
            if let Some((name, given)) = variable.split_once('=')
                && !given.is_empty()
            {
                *variable = format!("{name}={MASK}");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide_values),
        Value::Object(members) => {
            for member in members.values_mut() {
                match member {
                    Value::Array(_) | Value::Object(_) => hide_values(member),
                    other => hide_value(Some(other)),
                }
            }
        }
        _ => {}
    }
}

fn hide_value(value: Option<&mut Value>) {
    if let Some(value) = value
        && !value.is_null()
        && value != ""
    {
        *value = MASK.into();
    }
}

/// `NAME=value` in lists, by kind of device or not, and maps of names and values.
fn mask_variables(value: &mut Value) {
    match value {
        Value::String(variable) => {
            if let Some((name, given)) = variable.split_once('=') {
                *variable = format!("{name}={}", shown_variable(name, given));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask_variables),
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(given) => *given = shown_variable(name, given).into_owned(),
                    Value::Array(_) | Value::Object(_) => mask_variables(member),
                    other if names_a_secret(name) && !other.is_null() => *other = MASK.into(),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// An element of `env` of a container in a pod spec.
fn mask_container_variable(members: &mut Map<String, Value>) {
    let Some(name) = members
        .get("name")
        .and_then(Value::as_str)
        .map(str::to_owned)
    else {
        return;
    };
    if let Some(Value::String(given)) = members.get_mut("value") {
        *given = shown_variable(&name, given).into_owned();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_secrets_are_distinguished_from_others() {
        for name in [
            "HF_TOKEN",
            "HF_TOKEN2",
            "API_TOKENS",
            "AUTHTOKEN",
            "authToken",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "WANDB_API_KEY",
            "wandb_apikey",
            "wandbApiKey",
            "APIKey",
            "PGPASSWORD",
            "PASSWORD1",
            "DB_PASS",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GITHUB_PAT",
            "PAT",
            "githubPat",
            "git-pat",
            "REGISTRY_AUTH",
            "SSH_PASSPHRASE",
            "SENTRY_DSN",
            "AZURE_STORAGE_CONNECTION_STRING",
            "connectionString",
            "MAX_SECRET",
            "MAX_PASSWORD",
            "AWS_CREDS",
        ] {
            assert!(names_a_secret(name), "{name}");
        }
        for name in [
            "",
            "_",
            "TOKENIZERS_PARALLELISM",
            "KEYBOARD",
            "MONKEY",
            "NCCL_DEBUG",
            "PATH",
            "LD_LIBRARY_PATH",
            "PYTHONPATH",
            "PATIENCE",
            "PATCH",
            "DISPATCH",
            "PASSAGE",
            "AUTHOR",
            "MAX_TOKENS",
            "maxNewTokens",
            "NUM_TOKENS",
            "TOKEN_LIMIT",
            "BYPASS",
            "PWD",
        ] {
            assert!(!names_a_secret(name), "{name}");
        }
    }

    #[test]
    fn addresses_show_no_passwords() {
        for (given, shown) in [
            ("http://u:p@host:1/x", "http://********@host:1/x"),
            ("http://u:p@w@host", "http://********@host"),
            ("http://u:p/w@host/x", "http://********@host/x"),
            ("http://u:p#w@host", "http://********@host"),
            ("http://u:@p/w@host", "http://********@host"),
            ("https://token@host/x.git", "https://********@host/x.git"),
            ("git+https://token@host/x", "git+https://********@host/x"),
            ("postgres://u:p@h/n", "postgres://********@h/n"),
            ("redis://:p@h", "redis://********@h"),
            (
                "see a://u:p@h and b://v:q@i",
                "see a://********@h and b://********@i",
            ),
            ("a://u:p@h,b://v:q@i", "a://********@h,b://********@i"),
            ("--url=\"s3://u:p@h\"", "--url=\"s3://********@h\""),
            (
                "jdbc:postgresql://h/n?user=u&password=p&ssl=1",
                "jdbc:postgresql://h/n?user=u&password=********&ssl=1",
            ),
            ("http://u:päß@h", "http://********@h"),
        ] {
            assert_eq!(without_passwords(given), shown);
            assert!(is_masked(shown), "{shown}");
            assert_eq!(without_passwords(shown), shown, "hidden once");
        }
        for harmless in [
            "",
            "://",
            "a://",
            "ssh://git@github.com/x",
            "abfss://container@account.dfs.core.windows.net/x",
            "http://host:8080/@scope/package",
            "http://[::1]:80/a@b",
            "http://host/a@b?x=y",
            "me@example.com",
            "u:p@host",
            "******** important ********",
        ] {
            assert_eq!(without_passwords(harmless), harmless);
            assert!(!is_masked(harmless), "{harmless}");
        }
    }

    #[test]
    fn texts_in_the_wrong_place_show_no_values_of_secret_names() {
        for (given, shown) in [
            ("API_TOKEN=hush a b", "API_TOKEN=********"),
            ("API_TOKEN =hush", "API_TOKEN =********"),
            ("API_TOKEN: hush", "API_TOKEN:********"),
            ("a=b,MY_PASS=hush", "a=b,MY_PASS=********"),
            ("--token=hush", "--token=********"),
            ("{\"apiKey\": \"hush\"}", "{\"apiKey\":********"),
            ("export é.PASSWORD='hush'", "export é.PASSWORD=********"),
            ("http://u:p@h", "http://********@h"),
        ] {
            assert_eq!(found_text(given), shown);
        }
        for harmless in [
            "",
            "=",
            "API_TOKEN",
            "API_TOKEN=",
            "DEBUG=1",
            "/keys:/keys",
            "auth://h",
        ] {
            assert_eq!(found_text(harmless), harmless);
        }
    }

    #[test]
    fn proxies_are_addresses_without_a_scheme_too() {
        for name in ["http_proxy", "HTTPS_PROXY", "ALL_PROXY", "socksProxy"] {
            assert_eq!(shown_variable(name, "u:p@host:1"), "********@host:1");
            assert!(is_masked(&shown_variable(name, "u:p@host:1")), "{name}");
        }
        assert_eq!(shown_variable("no_proxy", "a,b"), "a,b");
        assert_eq!(shown_variable("WHO", "u:p@host"), "u:p@host");
    }

    proptest! {
        #[test]
        fn no_password_of_an_address_is_shown(
            scheme in "[a-z][a-z0-9+.-]{0,5}",
            user in "[a-z]{0,4}",
            password in "[!-~äß]{0,9}HIDDEN[!-~äß]{0,9}",
            before in "[ -~]{0,12} ",
            after in "( [ -~]{0,12})?",
        ) {
            // What looks like a port is one, and brackets are around an address of IPv6; what has a "://" in it begins anew.
            prop_assume!(!password.contains("://"));
            let text = format!("{before}{scheme}://{user}:{password}@host{after}");
            let port = password.split(['/', '?', '#']).next().unwrap_or_default();
            prop_assume!(!port.chars().all(|c| c.is_ascii_digit()));
            let shown = without_passwords(&text);
            prop_assert!(!shown.contains("HIDDEN"), "{shown}");
        }

        #[test]
        fn hiding_twice_is_hiding_once(text in "[a-z:/@?=&# *]{0,40}") {
            let once = without_passwords(&text).into_owned();
            prop_assert_eq!(without_passwords(&once), once.as_str());
        }

        #[test]
        fn a_secret_in_a_list_or_a_map_is_hidden_the_same(
            name in prop::sample::select(vec!["HF_TOKEN", "PAT", "PATH", "X_DSN", "MAX_TOKENS"]),
            value in "[ -~]{1,20}",
        ) {
            let mut both = serde_json::json!({
                "environment_variables": [format!("{name}={value}"), {name: value.clone()}],
            });
            mask_all_variables(&mut both);
            let variables = &both["environment_variables"];
            let in_map = variables[1][name].as_str().unwrap();
            let listed = format!("{name}={in_map}");
            prop_assert_eq!(variables[0].as_str().unwrap(), listed.as_str());
            prop_assert_eq!(in_map == MASK || value == MASK, names_a_secret(name) || value == MASK);
        }
    }
}
