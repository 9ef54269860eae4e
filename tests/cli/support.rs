//! Runs the program in the repository's directory.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_deployer-guard");
pub(crate) const OPENSHIFT: &str = "policies/openshift-deploymentconfig.yaml";
/// As kubectl printed it of a live cluster.
pub(crate) const SNAPSHOT: &str = "tests/data/check/snapshot.yaml";

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// The decision on review `review` under policy `policy`, of a run with `--output json`.
    pub(crate) fn decision(&self, review: usize, policy: usize) -> Value {
        self.report()["reviews"][review]["decisions"][policy].clone()
    }

    pub(crate) fn report(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The verdict of each review with the reason under its first policy, as `Admitted Free`.
    pub(crate) fn verdicts(&self) -> Vec<String> {
        let report = self.report();
        let reviews = report["reviews"].as_array().expect("reviews").iter();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        reviews
            .map(|review| {
                format!(
                    "{} {}",
                    text(&review["verdict"]),
                    text(&review["decisions"][0]["reason"])
                )
            })
            .collect()
    }
}

/// Runs the program with these arguments and this standard input, in an environment without our variables.
pub(crate) fn deployer_guard(arguments: &[&str], stdin: &str) -> Ended {
    let ours = std::env::vars().filter(|(name, _)| name.starts_with("DEPLOYER_GUARD_"));
    let mut command = Command::new(PROGRAM);
    for (name, _) in ours {
        command.env_remove(name);
    }
    let mut child = command
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // One that does not read its input ends all the same.
    let _ = child.stdin.take().expect("standard input").write_all(stdin.as_bytes());
    let output = child.wait_with_output().expect("the program ends");
    Ended {
        code: output.status.code().expect("an exit code"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// `check --output json` with these arguments.
pub(crate) fn check(arguments: &[&str]) -> Ended {
    deployer_guard(&[&["check", "--output", "json"], arguments].concat(), "")
}

/// A file with this text, of a name that ends with `name`.
pub(crate) fn file(name: &str, text: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}-{name}", std::process::id()));
    std::fs::write(&path, text).expect("the file is written");
    path.display().to_string()
}

/// A file of this repository.
pub(crate) fn source(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

/// A policy named `runners` for pods with the label `role: runner`, whose config is their label `app`, with this in its spec.
pub(crate) fn runners(spec: &str) -> String {
    format!(
        "apiVersion: deployer-guard.io/v1alpha1\nkind: DeployerPolicy\nmetadata: {{name: runners}}\nspec:\n  config: {{label: app}}\n{}",
        if spec.contains("match:") {
            spec.to_owned()
        } else {
            format!("  match: {{objectSelector: {{matchLabels: {{role: runner}}}}}}\n{spec}")
        }
    )
}

/// A document with a runner of `app`.
pub(crate) fn runner(name: &str, app: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {{role: runner, app: {app}}}\nspec:\n  containers: [{{name: main, image: image}}]\n"
    )
}
