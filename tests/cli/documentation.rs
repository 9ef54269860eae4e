//! What docs/check.md shows is what the program prints.

use serde_json::Value;

use crate::support::{OPENSHIFT, SNAPSHOT, check, deployer_guard, source};

/// The console blocks of a page: each command, and what it prints.
fn consoles(page: &str) -> Vec<(String, String)> {
    let blocks = page
        .split("```console\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```"));
    let commands = blocks.filter_map(|(block, _)| block.strip_prefix("$ ")?.split_once('\n'));
    commands
        .map(|(command, printed)| (command.to_owned(), printed.to_owned()))
        .collect()
}

#[test]
fn the_example_prints_what_the_page_shows() {
    let page = source("docs/check.md");
    let examples: Vec<_> = consoles(&page)
        .into_iter()
        .filter(|(command, _)| command.starts_with("deployer-guard check"))
        .collect();
    assert_eq!(examples.len(), 1);
    for (command, shown) in examples {
        let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
        let ended = deployer_guard(&arguments, "");
        assert_eq!(ended.stdout, shown, "{}", ended.stderr);
        assert_eq!(ended.code, 1);
    }
}

/// Every field that `--output json` prints, as `reviews[].decisions[].owner.uid`, is on the page; and the page names no other.
#[test]
fn every_field_of_the_report_is_documented() {
    let ended = check(&[
        "--policy",
        OPENSHIFT,
        "--objects",
        SNAPSHOT,
        "--review",
        "tests/data/check/deployers.yaml",
    ]);
    let mut printed = Vec::new();
    fields(&ended.report(), "", &mut printed);
    printed.sort();
    printed.dedup();
    let page = source("docs/check.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let mut documented: Vec<_> = rows.map(|(field, _)| field.to_owned()).collect();
    documented.sort();
    assert_eq!(documented, printed);
}

fn fields(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                let before = found.len();
                fields(value, &path, found);
                // Where a field of objects is null, its own name stands for them: another decision has them.
                if found.len() == before
                    && !matches!(key.as_str(), "identity" | "owner" | "holder" | "reviews" | "decisions")
                {
                    found.push(path);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, &format!("{path}[]"), found)),
        _ => {}
    }
}

#[test]
fn the_help_names_the_exit_codes_and_what_only_an_api_server_checks() {
    let help = deployer_guard(&["check", "--help"], "").stdout;
    for said in [
        "Exit codes, whatever a policy's mode is:\n  0 ",
        "\n  1 ",
        "\n  2 ",
        "\n  3 ",
        "kubectl apply --dry-run=server",
    ] {
        assert!(help.contains(said), "{help}");
    }
}
