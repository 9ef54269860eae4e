//! Kubernetes objects in files: YAML or JSON, one document or many, Lists, or standard input.

mod policies;

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::Spanned;

pub(super) use policies::{ensure_some, policies};

/// Lists in lists are not what kubectl prints; this many levels are more than anybody needs.
const MAX_LISTS: usize = 4;

/// Where an object stands, as `p.yaml, document 2 (line 14), item 3`. All are counted from 1; empty documents are not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    file: Arc<str>,
    document: usize,
    line: u64,
    items: Vec<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, document {} (line {})", self.file, self.document, self.line)?;
        self.items.iter().try_for_each(|item| write!(f, ", item {item}"))
    }
}

/// One object of a file.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    pub(super) place: Place,
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) object: Value,
}

impl Manifest {
    /// A text in the object.
    pub(super) fn text(&self, pointer: &str) -> Option<&str> {
        let text = self.object.pointer(pointer).and_then(Value::as_str);
        text.filter(|text| !text.is_empty())
    }

    /// The object as this type; what it does not know is passed over.
    ///
    /// # Errors
    /// If a field is missing or has another type, with the place and the field.
    pub(super) fn read<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_path_to_error::deserialize(&self.object).map_err(|error| {
            let field = error.path().to_string();
            let place = &self.place;
            anyhow::anyhow!("{place}: {} {field}: {}; mend the field", self.kind, error.inner())
        })
    }
}

/// Reads files; standard input at most once.
#[derive(Debug, Default)]
pub(super) struct Reader {
    stdin_is_read: bool,
    /// A List of anything, or of policies, without items was read: that is what kubectl prints where there is nothing.
    pub(super) saw_empty_list: bool,
}

impl Reader {
    /// All objects of a file, those of Lists one by one.
    ///
    /// # Errors
    /// If it cannot be read, or something in it is no Kubernetes object.
    pub(super) fn read(&mut self, file: &Path) -> anyhow::Result<Vec<Manifest>> {
        let (name, text) = self.text(file)?;
        let name: Arc<str> = name.into();
        let mut manifests = Vec::new();
        for (index, (line, object)) in documents(&name, &text)?.into_iter().enumerate() {
            let place = Place {
                file: Arc::clone(&name),
                document: index + 1,
                line,
                items: Vec::new(),
            };
            let is_empty = object["items"].as_array().is_some_and(Vec::is_empty);
            self.saw_empty_list |= is_empty && matches!(object["kind"].as_str(), Some("List" | "DeployerPolicyList"));
            unfold(place, object, None, &mut manifests)?;
        }
        Ok(manifests)
    }

    /// As [`read`](Self::read), of several files.
    pub(super) fn read_all(&mut self, files: &[PathBuf]) -> anyhow::Result<Vec<Manifest>> {
        let mut manifests = Vec::new();
        for file in files {
            manifests.extend(self.read(file)?);
        }
        Ok(manifests)
    }

    fn text(&mut self, file: &Path) -> anyhow::Result<(String, String)> {
        if file != Path::new("-") {
            let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
            return Ok((file.display().to_string(), text));
        }
        ensure!(
            !std::mem::replace(&mut self.stdin_is_read, true),
            "- (standard input) is given twice; give one of them as a file"
        );
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("standard input cannot be read")?;
        Ok(("standard input".into(), text))
    }
}

/// The documents of a text, each with the line that it begins on.
fn documents(name: &str, text: &str) -> anyhow::Result<Vec<(u64, Value)>> {
    // What kubectl prints as JSON is no YAML of a reasonable size, and is read faster.
    let json = text.trim_start().starts_with('{').then(|| json(text));
    match json {
        Some(Ok(documents)) => return Ok(documents),
        Some(Err(error)) if Path::new(name).extension().is_some_and(|extension| extension == "json") => {
            bail!("{name} is no JSON: {error}; mend it there");
        }
        _ => {}
    }
    let documents: Vec<Spanned<Value>> = serde_saphyr::from_multiple_with_options(text, options())
        .map_err(|error| anyhow::anyhow!("{name} is no YAML: {error}; mend it there"))?;
    Ok(documents
        .into_iter()
        .map(|document| (document.defined.line(), document.value))
        .collect())
}

fn json(text: &str) -> Result<Vec<(u64, Value)>, serde_json::Error> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter();
    let (mut documents, mut line, mut counted) = (Vec::new(), 1, 0);
    loop {
        let rest = &text[stream.byte_offset()..];
        let begin = text.len() - rest.trim_start().len();
        line += text[counted..begin].matches('\n').count() as u64;
        counted = begin;
        match stream.next() {
            Some(document) => documents.push((line, document?)),
            None => return Ok(documents),
        }
    }
}

/// The files are the user's own: a snapshot of a large namespace is no attack. Bounds on aliases stay.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_documents: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_total_comment_bytes: usize::MAX,
        },
        with_snippet: false,
    }
}

/// The object, or the items of a List; those of a list of one kind (`PodList`) need not name it again.
fn unfold(
    place: Place,
    mut object: Value,
    of: Option<(&str, &str)>,
    manifests: &mut Vec<Manifest>,
) -> anyhow::Result<()> {
    ensure!(
        object.is_object(),
        "{place}: this is no Kubernetes object; give fields such as apiVersion, kind and metadata"
    );
    if let Some((api_version, kind)) = of {
        let fields = [("apiVersion", api_version), ("kind", kind)];
        for (field, value) in fields {
            if object.get(field).is_none() {
                object[field] = value.into();
            }
        }
    }
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    for (field, value) in [("apiVersion", &api_version), ("kind", &kind)] {
        ensure!(
            !value.is_empty(),
            "{place}: {field} is missing, or no text; say which kind of object it is"
        );
    }
    let items = object
        .get_mut("items")
        .filter(|_| kind.ends_with("List"))
        .map(Value::take);
    let Some(Value::Array(items)) = items else {
        manifests.push(Manifest {
            place,
            api_version,
            kind,
            object,
        });
        return Ok(());
    };
    ensure!(
        place.items.len() < MAX_LISTS,
        "{place}: Lists are nested too deeply; give the objects themselves"
    );
    let of = kind.strip_suffix("List").filter(|kind| !kind.is_empty());
    for (index, item) in items.into_iter().enumerate() {
        let mut place = place.clone();
        place.items.push(index + 1);
        unfold(place, item, of.map(|kind| (&*api_version, kind)), manifests)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> anyhow::Result<Vec<String>> {
        let mut manifests = Vec::new();
        for (index, (line, object)) in documents(name, text)?.into_iter().enumerate() {
            let place = Place {
                file: name.into(),
                document: index + 1,
                line,
                items: Vec::new(),
            };
            unfold(place, object, None, &mut manifests)?;
        }
        let names = manifests.iter().map(|manifest| {
            let name = manifest.text("/metadata/name").unwrap_or_default();
            format!("{} {name} at {}", manifest.kind, manifest.place)
        });
        Ok(names.collect())
    }

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n";

    #[test]
    fn every_object_is_found_with_its_place() {
        let pod = |name: &str| format!(r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}"}}}}"#);
        let list = |kind: &str, items: &str| format!(r#"{{"apiVersion": "v1", "kind": "{kind}", "items": [{items}]}}"#);
        let nameless = r#"{"metadata": {"name": "a"}}"#;
        let one = "Pod a at f, document 1 (line 1)";
        for (text, found) in [
            (POD.to_owned(), vec![one.to_owned()]),
            (pod("a"), vec![one.to_owned()]),
            (
                format!("# none\n---\n---\n{POD}---\n# none\n---\n{POD}"),
                vec![
                    "Pod a at f, document 1 (line 4)".to_owned(),
                    "Pod a at f, document 2 (line 11)".to_owned(),
                ],
            ),
            (
                format!("{}\n\n{}", pod("a"), pod("b")),
                vec![one.to_owned(), "Pod b at f, document 2 (line 3)".to_owned()],
            ),
            // As JSON that is separated like YAML.
            (
                format!("{}\n---\n{}", pod("a"), pod("b")),
                vec![one.to_owned(), "Pod b at f, document 2 (line 3)".to_owned()],
            ),
            (
                list("List", &format!("{}, {}", pod("a"), pod("b"))),
                vec![
                    format!("{one}, item 1"),
                    "Pod b at f, document 1 (line 1), item 2".to_owned(),
                ],
            ),
            (list("PodList", nameless), vec![format!("{one}, item 1")]),
            (list("List", ""), vec![]),
            (String::new(), vec![]),
        ] {
            assert_eq!(read("f", &text).unwrap(), found, "{text}");
        }
    }

    #[test]
    fn what_is_no_object_is_named_with_its_place() {
        for (name, text, complaint) in [
            ("f", "kind: Pod", "f, document 1 (line 1): apiVersion is missing"),
            (
                "f",
                "apiVersion: v1\nkind: 1",
                "f, document 1 (line 1): kind is missing, or no text",
            ),
            (
                "f",
                "apiVersion: v1\nkind: List\nitems:\n- a: 1",
                "f, document 1 (line 1), item 1: apiVersion is missing",
            ),
            ("f", "- 1", "f, document 1 (line 1): this is no Kubernetes object"),
            ("f", "a: [1", "f is no YAML:"),
            (
                "f.json",
                "{\"a\": 1,}",
                "f.json is no JSON: trailing comma at line 1 column 9",
            ),
            ("f", "a: 1\na: 2", "f is no YAML:"),
        ] {
            let error = read(name, text).unwrap_err().to_string();
            assert!(error.starts_with(complaint), "{error}");
        }
    }

    #[test]
    fn a_snapshot_may_be_large() {
        let many = format!("{POD}---\n").repeat(3000);
        assert_eq!(read("f", &many).unwrap().len(), 3000);
        let labels: Vec<String> = (0..200).map(|label| format!("    l{label}: v\n")).collect();
        let item = format!(
            "- apiVersion: v1\n  kind: Pod\n  metadata:\n   name: a\n   labels:\n{}",
            labels.concat()
        );
        let list = format!("apiVersion: v1\nkind: List\nitems:\n{}", item.repeat(1000));
        assert_eq!(read("f", &list).unwrap().len(), 1000);
    }
}
