//! Exit codes, and `--expect`.

use crate::support::{check, deployer_guard, file, runner, runners};

/// Reviews that come to these verdicts, in this order.
fn given(policy: &str, verdicts: &[&str]) -> Vec<String> {
    let mut flags = vec!["--policy".to_owned(), file("p.yaml", policy)];
    for verdict in verdicts {
        let pod = match *verdict {
            "admitted" | "exists" => runner("one", "a"),
            "refused" => runner("two", "a"),
            _ => runner("three", "a").replace("runner", "other"),
        };
        flags.extend(["--review".to_owned(), file("r.yaml", &pod)]);
    }
    flags
}

#[test]
fn the_exit_code_tells_what_came_of_it() {
    for (verdicts, expect, code) in [
        (&["admitted"][..], None, 0),
        (&["other"], None, 0),
        (&["admitted", "other"], None, 0),
        (&["admitted", "refused"], None, 1),
        (&["admitted", "exists"], None, 1),
        (&["admitted"], Some("admitted"), 0),
        (&["admitted"], Some("refused"), 1),
        (&["admitted"], Some("not-matched"), 1),
        // A selector with a slip in it must not pass for an admission.
        (&["other"], Some("admitted"), 1),
        (&["other"], Some("not-matched"), 0),
        (
            &["admitted", "refused", "exists", "other"],
            Some("admitted,refused,refused,not-matched"),
            0,
        ),
        (&["admitted", "refused"], Some("admitted"), 1),
        (&["admitted", "refused"], Some("refused,admitted"), 1),
        (&["admitted", "refused"], Some("admitted,refused,refused"), 2),
        (&["admitted"], Some("friendly"), 2),
    ] {
        let mut flags = given(&runners(""), verdicts);
        flags.extend(expect.map(|expect| format!("--expect={expect}")));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let ended = check(&flags);
        assert_eq!(ended.code, code, "{verdicts:?} {expect:?}: {}", ended.stderr);
        // Whatever is wrong is said.
        assert_eq!(
            ended.stderr.is_empty(),
            code == 0 || expect.is_none(),
            "{verdicts:?} {expect:?}: {}",
            ended.stderr
        );
    }
}

#[test]
fn what_is_not_as_expected_is_named() {
    let flags = given(&runners(""), &["admitted", "refused"]);
    let flags: Vec<&str> = flags
        .iter()
        .map(String::as_str)
        .chain(["--expect", "admitted"])
        .collect();
    let ended = check(&flags);
    assert!(
        ended
            .stderr
            .starts_with("deployer-guard: default/two is Refused, not Admitted as --expect says ("),
        "{}",
        ended.stderr
    );
}

/// Where nothing can be said, nothing is as expected.
#[test]
fn what_is_undecided_goes_before_what_is_refused() {
    let policy = runners(
        "  match: {matchConditions: [{name: c, expression: \"object.metadata.name != 'two' || [1][object.spec.containers.size() + 4] == 1\"}]}\n",
    );
    for (verdicts, expect) in [
        (&["admitted", "exists", "refused"][..], None),
        (&["refused"], Some("--expect=refused")),
    ] {
        let flags = given(&policy, verdicts);
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(expect).collect();
        assert_eq!(check(&flags).code, 3, "{verdicts:?}");
    }
}

#[test]
fn a_command_line_that_lacks_something_is_bad_input() {
    for arguments in [
        &["check"][..],
        &["check", "--policy", "p.yaml"],
        &["check", "--polcy", "p.yaml"],
    ] {
        let ended = deployer_guard(arguments, "");
        assert_eq!(ended.code, 2, "{arguments:?}");
        assert!(ended.stderr.contains("Usage: deployer-guard check"), "{}", ended.stderr);
    }
}
