//! The program itself, on files: what it prints, and its exit codes. Needs nothing but the sources.

#![allow(missing_docs, reason = "a test")]

mod documentation;
mod expectations;
mod inputs;
mod policies;
mod supervising;
mod support;
mod verdicts;
