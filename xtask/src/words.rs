//! Rules on the words in comments, identifiers and messages: the field's terms instead of a dialect of our own.

use crate::Findings;

/// Words that must not be used, and what to write instead.
const WORDS: &[(&[&str], &str)] = &[
    (
        &["told", "tell", "tells"],
        "\"reported\", \"updated\" or \"notified\"",
    ),
    (&["mistake", "mistakes"], "\"error\""),
    (&["whoever", "somebody"], "\"the caller\" or \"a user\""),
    (&["stands", "stood"], "\"is\" or \"is stored\""),
    (&["hears", "heard"], "\"receives\" or \"received\""),
    (&["doubt", "doubts"], "\"invalidate\" or \"invalidation\""),
    (
        &["learn", "learns", "learned"],
        "\"load\", \"receive\" or \"find\"",
    ),
    (
        &["settle", "settles", "settled"],
        "\"finish\", \"compact\" or \"quiescent\"",
    ),
    (&["lie", "lies"], "\"is\", \"is laid\" or \"is stored\""),
    (&["gathering", "gatherings"], "\"all-gather\""),
    (
        &["story", "stories"],
        "\"explanation\", \"history\" or, for a test, \"scenario\"",
    ),
    (
        &["room", "rooms"],
        "\"capacity\", \"free slots\", \"disk space\" or \"crate\"",
    ),
];

/// Words of speech and for unknown people, in comments, messages and names of functions: what a program does has a verb of
/// its own.
const SPEECH: &[(&[&str], &str)] = &[
    (
        &["says", "said", "say", "saying"],
        "\"reports\", \"contains\", \"returns\" or what it is",
    ),
    (&["hear"], "\"receive\""),
    (
        &[
            "people",
            "person",
            "nobody",
            "everybody",
            "someone",
            "anybody",
            "everyone",
        ],
        "\"users\", \"a user\", \"every caller\", \"no user\" or what has or lacks it",
    ),
];

/// How comments that say what goes into something must not begin: "ingests", "adds" or "inserts" say how.
const TAKES_IN: &str = "/// Takes in ";

/// Files whose words are not checked: the one that explains what the words replace, the one whose lines stay as they were
/// when they were written, this one, which lists the words, and those that cannot change.
const UNCHECKED: &[&str] = &[
    "docs/glossary.md",
    "CHANGELOG.md",
    "xtask/src/words.rs",
    // Migrations that databases have applied: their checksums are recorded there, so that their text is final.
    "crates/store/migrations/0001_core.sql",
    "crates/store/migrations/0002_workspaces.sql",
    "crates/store/migrations/0003_log_retention.sql",
    "crates/store/migrations/0006_metric_runs.sql",
    "crates/store/migrations/0008_task_states.sql",
    "crates/store/migrations/0013_checkpoint_removals.sql",
    // A program for another framework, whose function has one of the names.
    "bench/measure/compare.py",
];

/// Checks the words of a file, and of its name where it is of a crate: of a Rust file those in comments, identifiers and messages, of a Python file those in
/// comments, documentation and messages, of a page, a scenario or the Makefile all, of a manifest those in comments and
/// descriptions, of a script, a table, a migration or another YAML file those in comments; other files have no errors.
/// `path` is relative to the repository.
pub(crate) fn check(path: &str, text: &str, findings: &mut Findings) {
    if UNCHECKED.contains(&path) {
        return;
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    let kind = name.rsplit_once('.').map_or("", |(_, kind)| kind);
    let is_of_crates = path.starts_with("crates/");
    if is_of_crates {
        let refused = refused(name, &[WORDS, SPEECH]);
        let refused = refused.map(|problem| format!("{path}: its name {problem}"));
        findings.errors.extend(refused);
    }
    let shebang = text.lines().next().filter(|line| line.starts_with("#!"));
    match kind {
        "rs" => check_rust(path, text, findings),
        "yaml" if is_of_crates => check_lines(path, text.lines().map(str::to_owned), findings),
        "md" => check_lines(path, prose(text), findings),
        "py" => check_python(path, text, findings),
        "toml" => check_lines(path, text.lines().map(comment_or_description), findings),
        "sql" => check_lines(path, text.lines().map(sql_comment), findings),
        "sh" | "tsv" | "yaml" => check_lines(path, text.lines().map(hash_comment), findings),
        "" if name == "Makefile" => {
            check_lines(path, text.lines().map(str::to_owned), findings);
        }
        "" if shebang.is_some_and(|line| line.contains("python")) => {
            check_python(path, text, findings);
        }
        "" if shebang.is_some() => {
            check_lines(path, text.lines().map(hash_comment), findings);
        }
        _ => {}
    }
}

/// Checks the words of a commit's subject, with what is quoted as code left out. `commit` is its short hash.
pub(crate) fn check_subject(commit: &str, subject: &str, findings: &mut Findings) {
    let text = without(subject, '`', '`');
    let refused = refused(&text, &[WORDS, SPEECH]);
    let refused = refused.map(|problem| format!("commit {commit}: its subject {problem}"));
    findings.errors.extend(refused);
}

/// A line of a manifest when it describes a package, else the comment in it.
fn comment_or_description(line: &str) -> String {
    if line.trim_start().starts_with("description") {
        line.to_owned()
    } else {
        hash_comment(line)
    }
}

/// What follows the sign of a comment in a line of SQL; empty without one.
fn sql_comment(line: &str) -> String {
    line.split_once("--")
        .map_or_else(String::new, |(_, comment)| comment.to_owned())
}

/// The lines of a page without its blocks of code and the addresses of its links.
fn prose(text: &str) -> impl Iterator<Item = String> {
    let mut in_block = false;
    text.lines().map(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        if is_fence || in_block {
            return String::new();
        }
        let mut parts = line.split("](");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |before, part| {
            let after = part.split_once(')').map_or("", |(_, after)| after);
            format!("{before}] {after}")
        })
    })
}

/// What follows the sign of a comment in a line of a script or a manifest; empty without one.
fn hash_comment(line: &str) -> String {
    let begins = |at: &usize| {
        line[..*at]
            .chars()
            .next_back()
            .is_none_or(char::is_whitespace)
    };
    let mut signs = line.match_indices('#').map(|(at, _)| at);
    signs
        .find(begins)
        .map_or_else(String::new, |at| line[at..].to_owned())
}

/// Checks lines of text, with what is quoted as code left out.
fn check_lines(path: &str, lines: impl Iterator<Item = String>, findings: &mut Findings) {
    for (number, line) in (1..).zip(lines) {
        check_words(
            (path, number),
            &without(&line, '`', '`'),
            &[WORDS, SPEECH],
            findings,
        );
    }
}

/// A list of words, each with what to write instead.
type Words = [(&'static [&'static str], &'static str)];

/// Checks the words of one line.
fn check_words(
    (path, number): (&str, usize),
    text: &str,
    lists: &[&Words],
    findings: &mut Findings,
) {
    let refused = refused(text, lists);
    let refused = refused.map(|problem| format!("{path}:{number}: {problem}"));
    findings.errors.extend(refused);
}

/// For each word of a text that must not be used what is wrong, as in `uses "told": write "reported"`.
fn refused(text: &str, lists: &[&Words]) -> impl Iterator<Item = String> {
    words_of(text).filter_map(move |word| {
        let word = word.to_lowercase();
        let mut listed = lists.iter().flat_map(|list| list.iter());
        let (_, instead) = listed.find(|(of, _)| of.contains(&word.as_str()))?;
        Some(format!("uses \"{word}\": write {instead}"))
    })
}

/// The words of a text, with names in parts: `TellErrored` has "Tell" and "Errored".
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    let names = text.split(|c: char| !c.is_ascii_alphanumeric());
    names.flat_map(|name| {
        let is_begin = |at: &usize| {
            let (before, after) = name.split_at(*at);
            before.ends_with(|c: char| c.is_ascii_lowercase())
                && after.starts_with(|c: char| c.is_ascii_uppercase())
        };
        let begins: Vec<usize> = (0..name.len()).filter(is_begin).collect();
        let ends = begins.iter().copied().chain([name.len()]);
        let begins = [0].into_iter().chain(begins.clone());
        begins
            .zip(ends.collect::<Vec<_>>())
            .map(|(begin, end)| &name[begin..end])
    })
}

fn check_python(path: &str, text: &str, findings: &mut Findings) {
    for Piece { kind, line, text } in python_pieces(text) {
        let text = match kind {
            PieceKind::Comment => text,
            PieceKind::Literal if is_message(&text) => without(&text, '{', '}'),
            PieceKind::Literal | PieceKind::Code => continue,
        };
        for (number, text) in (line..).zip(without(&text, '`', '`').split('\n')) {
            check_words((path, number), text, &[WORDS, SPEECH], findings);
        }
    }
}

/// The comments and strings of a Python file in their order, without the code between them.
fn python_pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(at) = rest.find(['#', '"', '\'']) {
        line += rest[..at].matches('\n').count();
        rest = &rest[at..];
        let (kind, skip, length, end) = next_python_piece(rest);
        pieces.push(Piece {
            kind,
            line,
            text: rest[skip..skip + length].to_owned(),
        });
        line += rest[..end].matches('\n').count();
        rest = &rest[end..];
    }
    pieces
}

/// Of a text that begins with the sign of a comment or with quotes the kind, where the inside starts, how long that is, and
/// where the next piece may begin. A string of one quote that its line does not end is taken to end there.
fn next_python_piece(text: &str) -> (PieceKind, usize, usize, usize) {
    if text.starts_with('#') {
        let length = text.find('\n').unwrap_or(text.len());
        return (PieceKind::Comment, 0, length, length);
    }
    let quote = ["\"\"\"", "'''", "\"", "'"]
        .into_iter()
        .find(|quote| text.starts_with(quote))
        .unwrap_or("'");
    let skip = quote.len();
    let inside = &text[skip..];
    let mut escaped = false;
    let mut ends = inside.char_indices().filter(|(at, letter)| {
        let is_end =
            !escaped && (inside[*at..].starts_with(quote) || (skip == 1 && *letter == '\n'));
        escaped = *letter == '\\' && !escaped;
        is_end
    });
    match ends.next() {
        Some((length, _)) => (PieceKind::Literal, skip, length, skip + length + skip),
        None => (PieceKind::Literal, skip, inside.len(), text.len()),
    }
}

fn check_rust(path: &str, text: &str, findings: &mut Findings) {
    for Piece { kind, line, text } in pieces(text) {
        let lists: &[&Words] = match kind {
            PieceKind::Code => &[WORDS],
            PieceKind::Comment => &[WORDS, SPEECH],
            PieceKind::Literal if is_message(&text) => &[WORDS, SPEECH],
            PieceKind::Literal => &[],
        };
        let text = match kind {
            PieceKind::Code => text,
            PieceKind::Comment => without(&text, '`', '`'),
            PieceKind::Literal => without(&text, '{', '}'),
        };
        for (number, text) in (line..).zip(text.split('\n')) {
            check_words((path, number), text, lists, findings);
            if kind == PieceKind::Code {
                for name in functions(text) {
                    check_words((path, number), name, &[SPEECH], findings);
                }
            }
        }
    }
    let mut after_comment = false;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if !after_comment && is_single_word(line) {
            findings.errors.push(format!(
                "{path}:{number}: has a comment of one word: state meaning, unit and range"
            ));
        }
        if !after_comment && is_bare_question(line) {
            findings.errors.push(format!(
                "{path}:{number}: has a comment that asks: state meaning, unit and range"
            ));
        }
        if !after_comment && is_bare_reference(line) {
            findings.errors.push(format!(
                "{path}:{number}: has a comment of two words that repeats a name: state meaning, unit and range"
            ));
        }
        if line.starts_with(TAKES_IN) {
            findings.errors.push(format!(
                "{path}:{number}: uses \"takes in\": write \"ingests\", \"adds\" or \"inserts\""
            ));
        }
        after_comment = line.starts_with("//");
    }
}

/// The names of the functions that a line of code defines.
fn functions(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let begins = line.match_indices("fn ").filter(move |(at, _)| {
        let before = line[..*at].chars().next_back();
        !before.is_some_and(is_part)
    });
    begins.map(move |(at, word)| {
        let name = &line[at + word.len()..];
        &name[..name.find(|c| !is_part(c)).unwrap_or(name.len())]
    })
}

/// What a part of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceKind {
    Code,
    Comment,
    /// The inside of a string.
    Literal,
}

/// A part of a file of one kind.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    kind: PieceKind,
    /// The line that it begins in, from 1.
    line: usize,
    text: String,
}

/// A Rust file in its order, as far as words are concerned: raw strings and characters are known, escapes are dropped.
fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while !rest.is_empty() {
        let (kind, skip, length, end) = next_piece(rest);
        let inside = &rest[skip..skip + length];
        let begins = line + rest[..skip].matches('\n').count();
        match pieces.last_mut() {
            Some(last) if last.kind == PieceKind::Code && kind == PieceKind::Code => {
                last.text.push_str(inside);
            }
            _ => pieces.push(Piece {
                kind,
                line: begins,
                text: inside.to_owned(),
            }),
        }
        line += rest[..end].matches('\n').count();
        rest = &rest[end..];
    }
    pieces
}

/// The kind of what a text begins with, where its inside starts, how long that is, and where the next piece begins.
fn next_piece(text: &str) -> (PieceKind, usize, usize, usize) {
    if text.starts_with("//") {
        let length = text.find('\n').unwrap_or(text.len());
        return (PieceKind::Comment, 0, length, length);
    }
    if let Some(raw) = text.strip_prefix('r')
        && let hashes = raw.len() - raw.trim_start_matches('#').len()
        && raw[hashes..].starts_with('"')
    {
        let start = 1 + hashes + 1;
        let close = format!("\"{}", "#".repeat(hashes));
        let length = text[start..].find(&close).unwrap_or(text.len() - start);
        let end = (start + length + close.len()).min(text.len());
        return (PieceKind::Literal, start, length, end);
    }
    if let Some(inside) = text.strip_prefix('"') {
        let mut escaped = false;
        let length = inside
            .find(|letter| {
                let ends = letter == '"' && !escaped;
                escaped = letter == '\\' && !escaped;
                ends
            })
            .unwrap_or(inside.len());
        return (PieceKind::Literal, 1, length, (length + 2).min(text.len()));
    }
    for quote in ["'\"'", "'\\\"'", "'\\''"] {
        if text.starts_with(quote) {
            return (PieceKind::Code, 0, quote.len(), quote.len());
        }
    }
    // A whole word at a time, so that the "r" at the end of one begins no raw string.
    let word = text.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
    let length = match word {
        Some(0) => text.chars().next().map_or(1, char::len_utf8),
        Some(length) => length,
        None => text.len(),
    };
    (PieceKind::Code, 0, length, length)
}

/// Whether a string is a message: more than one word. One word is a key, a value or an account, as the wire and other
/// programs have it.
fn is_message(literal: &str) -> bool {
    literal.trim().contains(char::is_whitespace)
}

/// A text without what is between these two, which may be the same.
fn without(text: &str, open: char, close: char) -> String {
    let mut inside = false;
    let keep = text.chars().filter(|letter| {
        let was_inside = inside;
        if inside && *letter == close {
            inside = false;
        } else if !inside && *letter == open {
            inside = true;
        }
        *letter == '\n' || !(was_inside || inside)
    });
    keep.collect()
}

/// Words that a question begins with.
const QUESTIONS: &[&str] = &["What", "When", "Where", "Which", "Who", "Whose", "Why"];

/// Whether a line is a doc comment of a question word and one or two more, as "Which experiment.": it names what the field's
/// name and type name already.
fn is_bare_question(line: &str) -> bool {
    line.strip_prefix("/// ")
        .and_then(|text| text.strip_suffix('.'))
        .is_some_and(|text| {
            let words: Vec<&str> = text.split(' ').collect();
            let is_plain = |word: &&str| word.chars().all(char::is_alphabetic);
            QUESTIONS.contains(&words[0])
                && (2..=3).contains(&words.len())
                && words.iter().all(is_plain)
        })
}

/// Words that, with one more, only point at something, as in "Its id." or "By name.".
const REFERENCES: &[&str] = &["At", "Being", "By", "It", "Its"];

/// Whether a line is a doc comment of one of [`REFERENCES`] and one more word, as "Its id.": it repeats the name of the
/// field or the variant. What is quoted as code, and compound words such as "UTF-8", count as one word.
fn is_bare_reference(line: &str) -> bool {
    line.strip_prefix("/// ")
        .and_then(|text| text.strip_suffix('.'))
        .and_then(|text| text.split_once(' '))
        .is_some_and(|(first, rest)| {
            REFERENCES.contains(&first) && !rest.contains(|c: char| c.is_whitespace() || c == ':')
        })
}

/// Whether a line is a doc comment of one capitalised word.
fn is_single_word(line: &str) -> bool {
    line.strip_prefix("/// ")
        .and_then(|text| text.strip_suffix('.'))
        .is_some_and(|word| {
            word.starts_with(char::is_uppercase) && word.chars().all(char::is_alphabetic)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(path: &str, text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        check(path, text, &mut findings);
        findings.errors
    }

    #[test]
    fn comments_and_identifiers_are_checked() {
        let text = "// Whoever calls.\nfn is_told() {}\nlet x = \"told\";\nRoomBeingFreed\n";
        assert_eq!(
            errors("crates/failpoints/src/lib.rs", text),
            [
                "crates/failpoints/src/lib.rs:1: uses \"whoever\": write \"the caller\" or \"a user\"",
                "crates/failpoints/src/lib.rs:2: uses \"told\": write \"reported\", \"updated\" or \"notified\"",
                "crates/failpoints/src/lib.rs:4: uses \"room\": write \"capacity\", \"free slots\", \"disk space\" or \"crate\"",
            ]
        );
    }

    #[test]
    fn messages_are_checked_and_keys_variables_and_code_in_comments_are_not() {
        let text = "let key = \"told\";\nlet quote = '\"';\nfail(\"the master is {told} \\\"x\\\"\\\n    and is told \
                    \");\nr#\"it \"says\" so\"#;\n// The user `nobody`.\nlet for_r = \"of people here\";\n";
        let found = errors("crates/spool/src/lib.rs", text);
        let words: Vec<&str> = found
            .iter()
            .filter_map(|error| error.strip_prefix("crates/spool/src/lib.rs:"))
            .filter_map(|error| Some(error.split_once(": write")?.0))
            .collect();
        assert_eq!(
            words,
            ["4: uses \"told\"", "5: uses \"says\"", "7: uses \"people\""]
        );
    }

    #[test]
    fn names_are_checked_by_their_parts() {
        let words: Vec<&str> = words_of("TellErrored(of_room, UUIDs) x2Say").collect();
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        assert_eq!(words, ["Tell", "Errored", "of", "room", "UUIDs", "x2Say"]);
    }

    #[test]
    fn a_comment_of_one_word_is_refused_but_not_the_last_word_of_a_longer_one() {
        let found = errors(
            "crates/tls/src/lib.rs",
            "/// Which.\n\n/// The\n/// Name.\n",
        );
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/tls/src/lib.rs:1: "));
    }

    #[test]
    fn a_comment_that_only_asks_is_refused() {
        let found = errors(
            "crates/tls/src/lib.rs",
            "/// Which experiment.\n\n/// Which way.\n\n/// Which of two goes first.\n\n/// Takes in a line.\n",
        );
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[1].starts_with("crates/tls/src/lib.rs:3: "));
        assert!(found[2].contains("takes in"));
    }

    #[test]
    fn a_comment_of_two_words_that_points_at_a_name_is_refused() {
        let text = "/// Its id.\n\n    /// By name.\n\n/// It runs.\n\n/// Its `spec`.\n\n/// At most.\n\n/// Being deleted.\n";
        let found = errors("crates/tls/src/lib.rs", text);
        assert_eq!(found.len(), 6, "{found:?}");
        assert!(found[1].starts_with("crates/tls/src/lib.rs:3: has a comment of two words"));
        let longer = "/// Its id, a UUID.\n\n/// By name of the pool.\n\n/// The list is sorted\n/// By name.\n\n/// Tied.\n// It runs.\n";
        let found = errors("crates/tls/src/lib.rs", longer);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("one word"), "{found:?}");
    }

    #[test]
    fn words_for_unknown_users_and_for_receiving_are_refused_in_comments_and_messages() {
        let text = "// Anybody may hear it; it stood there for everyone.\nagent.said();\n";
        let found = errors("crates/tls/src/lib.rs", text);
        assert_eq!(found.len(), 4, "{found:?}");
    }

    #[test]
    fn words_of_speech_are_refused_in_names_of_functions() {
        let text = "let said = of_fn(said);\npub async fn it_says_so(nobody: u8) {}\nlet f: fn (person) = by_person;\nfn ok() {}\n";
        let found = errors("crates/tls/src/lib.rs", text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("crates/tls/src/lib.rs:2: uses \"says\""),
            "{found:?}"
        );
    }

    #[test]
    fn words_in_names_of_files_are_refused() {
        assert_eq!(
            errors("crates/scenario/scenarios/freed-room.yaml", "").len(),
            1
        );
        assert_eq!(errors("crates/store/tests/contract/people.rs", "").len(), 1);
        assert_eq!(
            errors("crates/store/tests/contract/rows.rs", ""),
            Vec::<String>::new()
        );
    }

    #[test]
    fn pages_scenarios_and_comments_of_scripts_are_checked() {
        for (path, text, expected) in [
            (
                "docs/logs.md",
                "It says `told`.\n```\nit says\n```\n[x](says.md)\n",
                1,
            ),
            (
                "crates/scenario/scenarios/x.yaml",
                "note: nobody waits\n",
                1,
            ),
            ("python/x.py", "told = \"nobody\"  # It says so.\n", 1),
            ("Cargo.toml", "# Every room.\nroom = 1\n", 1),
            ("Cargo.toml", "description = \"Every room.\"\n", 1),
            ("Makefile", "## For people.\nx:\n\techo told\n", 2),
            (
                "crates/config/tests/keys/x.tsv",
                "# It says so.\ntold\t1\n",
                1,
            ),
            (
                "crates/store/migrations/9999_x.sql",
                "told -- It says so.\n",
                1,
            ),
            ("deploy/x.yaml", "told: 1 # It says so.\n", 1),
            (
                "scripts/run",
                "#!/usr/bin/env python3\n\"\"\"It says.\"\"\"\n",
                1,
            ),
            ("scripts/run", "#!/bin/sh\necho told # told\n", 1),
            ("scripts/data", "# told\n", 0),
            ("docs/glossary.md", "told\n", 0),
        ] {
            assert_eq!(errors(path, text).len(), expected, "{path}");
        }
    }

    #[test]
    fn documentation_and_messages_of_python_are_checked() {
        let text = "\"\"\"Lines\nfor people.\n\"\"\"\nfail(f'it \\'{told}\\' says')\nx = '' # said\nsaid = r\"said\"\ns = '''a\n`told` person'''\n\"";
        let found = errors("python/x.py", text);
        let words: Vec<&str> = found
            .iter()
            .filter_map(|error| error.strip_prefix("python/x.py:"))
            .filter_map(|error| Some(error.split_once(": write")?.0))
            .collect();
        assert_eq!(
            words,
            [
                "2: uses \"people\"",
                "4: uses \"says\"",
                "5: uses \"said\"",
                "8: uses \"person\""
            ]
        );
    }

    #[test]
    fn rust_outside_the_crates_is_checked_except_the_list_of_words() {
        assert_eq!(errors("xtask/src/files.rs", "// told\n").len(), 1);
        assert_eq!(
            errors("xtask/src/words.rs", "// told\n"),
            Vec::<String>::new()
        );
    }
}
