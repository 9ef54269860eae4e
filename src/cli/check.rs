//! `deployer-guard check`: what would be decided, and why, without a cluster.

mod rehearsal;
mod report;
mod reviews;
mod snapshot;
mod table;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};

use super::manifests::{Reader, ensure_some, policies};
use crate::api::DeployerPolicy;
use rehearsal::Rehearsal;
use report::{Report, Reviewed, Verdict};
use reviews::{Defaults, Review, reviews};
use snapshot::Snapshot;

/// Exit code where something is refused, or is not as `--expect` says.
const REFUSED: u8 = 1;
/// Exit code for bad input, and for whatever else keeps the check from being made; clap uses it too.
pub(super) const BAD_INPUT: u8 = 2;
/// Exit code where something could not be decided.
const UNDECIDED: u8 = 3;

/// What the help says after the flags; clap breaks the lines.
const AFTER_HELP: &str = "\
Each review is decided on what the earlier ones left: a pod that is let in is stored, and the next one meets it. The decision is \
the webhook's own, made by the same code over the given objects; pods that no policy matches are let in, as an API server would.

Example:
  kubectl get -A pods,rc,deployerclaims,ns -o yaml > all.yaml
  deployer-guard check --policy p.yaml --objects all.yaml --review pod.yaml

A pod in --review is taken to be created: it gets a uid (and a name, if it has generateName) that is plainly made up. What else \
an API server would fill in or refuse (defaults, other admission plugins, quota) is not known here.

Policies are checked as the webhook checks them, and for fields that are not known. The API server checks more (patterns and rules \
of the CustomResourceDefinition, the last of CEL's types):
  kubectl apply --dry-run=server -f p.yaml

Exit codes, whatever a policy's mode is:
  0  every review is admitted, or no policy matches it
  1  a review is refused, or its name exists
  2  the input or the command line is wrong; nothing was decided
  3  a review could not be decided; goes before 1
With --expect, 0 says that all is as expected, and 1 that something is not.";

/// Options of `check`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct CheckArgs {
    /// A file of DeployerPolicy objects, YAML or JSON, several in one file or a List; - is standard input; may be repeated
    #[arg(long = "policy", env = "DEPLOYER_GUARD_POLICY", value_name = "FILE", required = true)]
    policies: Vec<PathBuf>,
    /// A file of the cluster's objects (pods, owners, DeployerClaims, Namespaces), as kubectl get -o yaml prints them; may be
    /// repeated. Without it nothing is in the cluster
    #[arg(long, env = "DEPLOYER_GUARD_OBJECTS", value_name = "FILE")]
    objects: Vec<PathBuf>,
    /// A file of AdmissionReviews or pods to decide on, in their order; may be repeated
    #[arg(long = "review", env = "DEPLOYER_GUARD_REVIEW", value_name = "FILE", required = true)]
    reviews: Vec<PathBuf>,
    /// The namespace of pods that name none
    #[arg(
        long,
        env = "DEPLOYER_GUARD_POD_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "default"
    )]
    namespace: String,
    /// Who creates the pods that are given as manifests
    #[arg(
        long = "as",
        env = "DEPLOYER_GUARD_AS",
        value_name = "USER",
        default_value = "deployer-guard-check"
    )]
    user: String,
    /// The namespace of deployer-guard, which is never matched
    #[arg(
        long,
        env = "DEPLOYER_GUARD_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "deployer-guard"
    )]
    guard_namespace: String,
    /// Decide on each review by the given objects alone, not on what earlier reviews left
    #[arg(long, env = "DEPLOYER_GUARD_INDEPENDENT")]
    independent: bool,
    /// What is expected of every review, or of each in turn, separated by commas; the exit code then says whether it is so
    #[arg(long, env = "DEPLOYER_GUARD_EXPECT", value_name = "VERDICT", value_delimiter = ',')]
    expect: Vec<Expected>,
    /// The form of the report
    #[arg(
        long,
        short,
        env = "DEPLOYER_GUARD_OUTPUT",
        value_name = "FORM",
        default_value = "table"
    )]
    output: Output,
}

/// The form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// One JSON document, for machines; docs/check.md lists its fields.
    Json,
}

/// A verdict that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Expected {
    /// A policy matches, and every one that does admits it.
    Admitted,
    /// A policy refuses it, or its name exists.
    Refused,
    /// No policy matches.
    NotMatched,
}

impl Expected {
    fn is_met_by(self, verdict: Verdict) -> bool {
        match self {
            Self::Admitted => verdict == Verdict::Admitted,
            Self::Refused => matches!(verdict, Verdict::Refused | Verdict::NameExists),
            Self::NotMatched => verdict == Verdict::NotMatched,
        }
    }
}

/// Makes the check and prints it.
///
/// # Errors
/// If the input cannot be used. Nothing is printed then.
pub(super) fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let mut reader = Reader::default();
    let policies = policies(&mut reader, &args.policies)?;
    ensure_some(&policies)?;
    let policies = stored(policies);
    let snapshot = Snapshot::read(&mut reader, &args.objects, &args.namespace)?;
    let defaults = Defaults {
        namespace: &args.namespace,
        user: &args.user,
    };
    let (reviews, passed_over) = reviews(&mut reader, &args.reviews, &defaults)?;
    let expected = expectations(&args.expect, reviews.len())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.context("the runtime cannot be started")?;
    let reviewed = runtime.block_on(decide(args, &policies, &snapshot, &reviews))?;
    let mut notes = [snapshot.notes.clone(), passed_over].concat();
    if args.objects.is_empty() {
        notes.push("no --objects are given: nothing is in the cluster before the first review".into());
    }
    let report = Report::new(reviewed, notes);
    print(&report, args.output).context("standard output cannot be written")?;
    Ok(exit_code(&report, &expected))
}

/// The policies as a cluster would hold them, by name.
fn stored(mut policies: Vec<DeployerPolicy>) -> Vec<DeployerPolicy> {
    for policy in &mut policies {
        let metadata = &mut policy.metadata;
        let name = metadata.name.clone().unwrap_or_default();
        metadata.uid.get_or_insert_with(|| format!("made-up-{name}"));
        metadata.generation.get_or_insert(1);
    }
    policies.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    policies
}

async fn decide(
    args: &CheckArgs,
    policies: &[DeployerPolicy],
    snapshot: &Snapshot,
    reviews: &[Review],
) -> anyhow::Result<Vec<Reviewed>> {
    let new = || Rehearsal::new(snapshot, policies, &args.guard_namespace);
    let mut rehearsal = new()?;
    let mut reviewed = Vec::new();
    for review in reviews {
        if args.independent {
            rehearsal = new()?;
        }
        reviewed.push(rehearsal.decide(review, snapshot).await?);
    }
    Ok(reviewed)
}

/// What is expected of each review; nothing where `--expect` is not given.
fn expectations(expect: &[Expected], reviews: usize) -> anyhow::Result<Vec<Expected>> {
    match expect {
        [one] => Ok(vec![*one; reviews]),
        several => {
            ensure!(
                several.is_empty() || several.len() == reviews,
                "--expect gives {} verdicts for {reviews} reviews; give one for all, or one for each",
                several.len()
            );
            Ok(several.to_vec())
        }
    }
}

fn print(report: &Report, output: Output) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match output {
        Output::Table => table::write(&mut out, report)?,
        Output::Json => {
            serde_json::to_writer_pretty(&mut out, report)?;
            writeln!(out)?;
        }
    }
    out.flush()
}

/// Says on standard error what is not as expected.
fn exit_code(report: &Report, expected: &[Expected]) -> ExitCode {
    let mut unexpected = false;
    for (review, expected) in report.reviews.iter().zip(expected) {
        if !expected.is_met_by(review.verdict) {
            unexpected = true;
            eprintln!(
                "deployer-guard: {}/{} is {}, not {expected:?} as --expect says ({})",
                review.namespace, review.pod, review.verdict, review.source
            );
        }
    }
    let summary = report.summary;
    let refused = expected.is_empty() && summary.refused + summary.name_exists > 0;
    ExitCode::from(match (summary.undecided > 0, unexpected || refused) {
        (true, _) => UNDECIDED,
        (false, true) => REFUSED,
        (false, false) => 0,
    })
}
