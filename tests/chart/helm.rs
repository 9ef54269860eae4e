//! Helm, and what it makes of the chart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

pub(crate) const RELEASE: &str = "deployer-guard";
pub(crate) const NAMESPACE: &str = "deployer-guard";

/// A file of the repository.
pub(crate) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A program that `tests/cluster/build.sh` builds.
pub(crate) fn program(name: &'static str) -> PathBuf {
    static BUILT: OnceLock<std::sync::Mutex<BTreeMap<&'static str, PathBuf>>> = OnceLock::new();
    let mut built = BUILT
        .get_or_init(Default::default)
        .lock()
        .expect("no test panics in here");
    let path = built.entry(name).or_insert_with(|| {
        let output = Command::new(file("tests/cluster/build.sh"))
            .arg(name)
            .stderr(Stdio::inherit())
            .output()
            .expect("build.sh runs");
        assert!(output.status.success(), "build.sh {name}: {}", output.status);
        Path::new(String::from_utf8(output.stdout).expect("a path").trim_end()).join(name)
    });
    path.clone()
}

/// The values that are worth a test, by name.
pub(crate) fn shapes() -> BTreeMap<String, PathBuf> {
    let shapes: BTreeMap<_, _> = std::fs::read_dir(file("charts/deployer-guard/ci"))
        .expect("the chart's ci directory")
        .map(|entry| entry.expect("an entry").path())
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_suffix("-values.yaml")?.to_owned();
            Some((name, path))
        })
        .collect();
    assert!(shapes.len() >= 8, "{shapes:?}");
    shapes
}

fn run(helm: &'static str, args: &[&str]) -> Output {
    Command::new(program(helm))
        .args(args)
        // Nothing of whoever runs the tests.
        .env_remove("KUBECONFIG")
        .env("HELM_CACHE_HOME", std::env::temp_dir().join("deployer-guard-helm"))
        .env("HELM_CONFIG_HOME", std::env::temp_dir().join("deployer-guard-helm"))
        .env("HELM_DATA_HOME", std::env::temp_dir().join("deployer-guard-helm"))
        .output()
        .expect("helm runs")
}

/// What helm prints.
///
/// # Errors
/// What it complains of.
pub(crate) fn helm(helm: &'static str, args: &[&str]) -> Result<String, String> {
    let output = run(helm, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{}{}", text(&output.stdout), text(&output.stderr)))
    }
}

/// The chart with further flags, as text.
///
/// # Errors
/// What helm complains of.
pub(crate) fn template(program: &'static str, flags: &[&str]) -> Result<String, String> {
    let chart = file("charts/deployer-guard");
    let mut args = vec![
        "template",
        RELEASE,
        chart.to_str().expect("UTF-8"),
        "--namespace",
        NAMESPACE,
    ];
    args.extend(["--kube-version", "1.36.0"]);
    args.extend(flags);
    helm(program, &args)
}

/// The objects of a text.
pub(crate) fn objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple::<Value>(text)
        .unwrap_or_else(|error| panic!("not YAML: {error}\n{text}"))
        .into_iter()
        .filter(|object| !object.is_null())
        .collect()
}

/// The chart with the values of a file, as objects.
pub(crate) fn rendered(values: &Path, flags: &[&str]) -> Vec<Value> {
    let mut all = vec!["--values", values.to_str().expect("UTF-8")];
    all.extend(flags);
    objects(&template("helm", &all).unwrap_or_else(|error| panic!("{}: {error}", values.display())))
}

/// The objects of a kind.
pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// The hooks among them are not part of the release.
pub(crate) fn is_hook(object: &Value) -> bool {
    object["metadata"]["annotations"].get("helm.sh/hook").is_some()
}
