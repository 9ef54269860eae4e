//! Patterns of `matches`, which the API server reads with Go's engine and we with Rust's. What they read in another way
//! is brought to one meaning, or refused.

use regex_syntax::ast::{
    AssertionKind, Ast, ClassPerl, ClassPerlKind, ClassSet, ClassSetItem, Flag, Flags, FlagsItemKind, GroupKind,
    HexLiteralKind, Literal, LiteralKind, RepetitionKind, RepetitionRange, Span, SpecialLiteralKind, Visitor, parse,
    visit,
};

/// How often a part of a pattern may be repeated, counted through all repetitions around it: Go's limit.
const MAX_REPEATS: u32 = 1000;

/// The pattern with the meaning that Go gives it.
///
/// # Errors
/// With what is wrong, or which part of it the two engines do not read alike.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let tree = parse::Parser::new()
        .parse(pattern)
        .map_err(|error| error.kind().to_string())?;
    let replacements = visit(&tree, Reader::default())?;
    let mut translated = pattern.to_owned();
    for (span, text) in replacements.into_iter().rev() {
        translated.replace_range(span.start.offset..span.end.offset, text);
    }
    Ok(translated)
}

/// Collects what must be written in another way, in order.
struct Reader {
    replacements: Vec<(Span, &'static str)>,
    /// How often the part under way may still be repeated; one entry for each repetition around it.
    repeats: Vec<u32>,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            replacements: Vec::new(),
            repeats: vec![MAX_REPEATS],
        }
    }
}

impl Visitor for Reader {
    type Output = Vec<(Span, &'static str)>;
    type Err = String;

    fn finish(self) -> Result<Self::Output, String> {
        Ok(self.replacements)
    }

    fn visit_pre(&mut self, part: &Ast) -> Result<(), String> {
        match part {
            Ast::Flags(flags) => check_flags(&flags.flags),
            Ast::Literal(literal) => check_literal(literal),
            Ast::Assertion(assertion) => match assertion.kind {
                AssertionKind::WordBoundary => {
                    self.replacements.push((assertion.span, r"(?-u:\b)"));
                    Ok(())
                }
                AssertionKind::StartLine
                | AssertionKind::EndLine
                | AssertionKind::StartText
                | AssertionKind::EndText => Ok(()),
                _ => Err(r"of the word boundaries only \b is known to both engines".into()),
            },
            Ast::ClassPerl(class) => {
                self.perl(class);
                Ok(())
            }
            Ast::ClassUnicode(_) => unicode_class(),
            Ast::ClassBracketed(class) if matches!(class.kind, ClassSet::BinaryOp(_)) => set_operation(),
            Ast::Repetition(repetition) => {
                if matches!(*repetition.ast, Ast::Repetition(_)) {
                    return Err("a repetition operator follows another; put the first into a group".into());
                }
                self.repeat(&repetition.op.kind)
            }
            Ast::Group(group) => check_group(&group.kind),
            _ => Ok(()),
        }
    }

    fn visit_post(&mut self, part: &Ast) -> Result<(), String> {
        if matches!(part, Ast::Repetition(_)) {
            self.repeats.pop();
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), String> {
        match item {
            ClassSetItem::Literal(literal) => check_literal(literal),
            ClassSetItem::Range(range) => check_literal(&range.start).and_then(|()| check_literal(&range.end)),
            ClassSetItem::Perl(class) => {
                self.perl(class);
                Ok(())
            }
            ClassSetItem::Unicode(_) => unicode_class(),
            ClassSetItem::Bracketed(_) => set_operation(),
            ClassSetItem::Empty(_) | ClassSetItem::Ascii(_) | ClassSetItem::Union(_) => Ok(()),
        }
    }
}

impl Reader {
    /// Go's are of ASCII alone.
    fn perl(&mut self, class: &ClassPerl) {
        let text = match (&class.kind, class.negated) {
            (ClassPerlKind::Digit, false) => "[0-9]",
            (ClassPerlKind::Digit, true) => "[^0-9]",
            (ClassPerlKind::Space, false) => r"[\t\n\f\r ]",
            (ClassPerlKind::Space, true) => r"[^\t\n\f\r ]",
            (ClassPerlKind::Word, false) => "[0-9A-Za-z_]",
            (ClassPerlKind::Word, true) => "[^0-9A-Za-z_]",
        };
        self.replacements.push((class.span, text));
    }

    fn repeat(&mut self, kind: &RepetitionKind) -> Result<(), String> {
        let left = self.repeats.last().copied().unwrap_or_default();
        let count = match kind {
            RepetitionKind::Range(RepetitionRange::Exactly(count) | RepetitionRange::AtLeast(count)) => *count,
            RepetitionKind::Range(RepetitionRange::Bounded(_, most)) => *most,
            _ => 0,
        };
        if count > left {
            return Err(format!("a part of it is repeated more than {MAX_REPEATS} times"));
        }
        self.repeats.push(left / count.max(1));
        Ok(())
    }
}

fn check_literal(literal: &Literal) -> Result<(), String> {
    match &literal.kind {
        LiteralKind::Octal
        | LiteralKind::HexFixed(HexLiteralKind::UnicodeShort | HexLiteralKind::UnicodeLong)
        | LiteralKind::HexBrace(HexLiteralKind::UnicodeShort | HexLiteralKind::UnicodeLong)
        | LiteralKind::Special(SpecialLiteralKind::Space) => Err(r"write a character by its code as \x{...}".into()),
        _ => Ok(()),
    }
}

fn check_flags(flags: &Flags) -> Result<(), String> {
    let known = |item: &FlagsItemKind| {
        !matches!(
            item,
            FlagsItemKind::Flag(Flag::Unicode | Flag::CRLF | Flag::IgnoreWhitespace)
        )
    };
    if flags.items.iter().all(|item| known(&item.kind)) {
        Ok(())
    } else {
        Err("of the flags only i, m, s and U are known to both engines".into())
    }
}

fn check_group(kind: &GroupKind) -> Result<(), String> {
    match kind {
        GroupKind::CaptureName { name, .. }
            if !name
                .name
                .chars()
                .all(|character| character.is_ascii_alphanumeric() || character == '_') =>
        {
            Err("the name of a group has other characters than letters, digits and _".into())
        }
        GroupKind::NonCapturing(flags) => check_flags(flags),
        _ => Ok(()),
    }
}

fn unicode_class() -> Result<(), String> {
    Err(r"\p and \P depend on the version of Unicode; name the characters, as in [A-Za-z]".into())
}

fn set_operation() -> Result<(), String> {
    Err(
        r"[, &&, -- and ~~ have a meaning of their own in a class for one of the engines; escape them, as in [\[a]"
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engines_read_in_another_way_is_brought_to_one_meaning() {
        for (pattern, translated) in [
            (r"^v\d+(\.\d+)*$", r"^v[0-9]+(\.[0-9]+)*$"),
            (r"[\d_]\W", r"[[0-9]_][^0-9A-Za-z_]"),
            (r"\bä\b", r"(?-u:\b)ä(?-u:\b)"),
            (r"\\d", r"\\d"),
            ("(?i)^abc{2,3}$", "(?i)^abc{2,3}$"),
            ("((a{10}){10}b{1000})", "((a{10}){10}b{1000})"),
        ] {
            assert_eq!(translate(pattern).as_deref(), Ok(translated), "{pattern}");
        }
    }

    #[test]
    fn what_the_engines_cannot_agree_on_is_refused() {
        for (pattern, text) in [
            ("(", "unclosed group"),
            ("a{1001}", "more than 1000 times"),
            ("((a{100}){5}){3}", "more than 1000 times"),
            ("a**", "put the first into a group"),
            (r"\pL", "name the characters"),
            (r"[\p{Greek}]", "name the characters"),
            (r"a\B", r"only \b"),
            (r"\<a", r"only \b"),
            ("[a&&b]", "escape them"),
            ("[[a]b]", "escape them"),
            ("(?x)a b", "only i, m, s and U"),
            ("(?R:a)", "only i, m, s and U"),
            (r"\u0061", r"\x{...}"),
            (r"[\u0061-z]", r"\x{...}"),
            ("(?P<a.b>c)", "the name of a group"),
        ] {
            let error = translate(pattern).expect_err(pattern);
            assert!(error.contains(text), "{pattern}: {error}");
        }
    }
}
