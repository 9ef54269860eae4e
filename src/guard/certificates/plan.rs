//! What is to be done about the Secret with the certificates: one step at a time, from what it holds and what the stored webhook
//! configuration trusts. Nothing is remembered between steps, so that whoever leads goes on where another one stopped.
//!
//! The life of an authority: it *joins* the bundle, and is not used until every entry of ours has trusted it for a while; then it
//! *issues* the serving certificate, alone; it stays in the bundle for some time after it expired, while its successor has joined and
//! issues: a clock that is wrong for a while must not cost what cannot be made again.

use std::fmt;

use super::authority::Life;

/// How long a new authority waits to be trusted where nothing else can be served with, in seconds. An entry that the API server
/// does not let us write keeps others waiting no longer.
pub const PATIENCE: i64 = 120;

/// How long before the end of an authority its successor issues, at the latest, in seconds; where its life is short, a hundredth of that.
const ENDING: i64 = 60;

/// Whether every entry of ours trusts an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// One does not.
    Missing,
    /// All do, but API servers may not have heard of it.
    Fresh,
    /// All have for as long as API servers need to hear of it. So it is where there is no entry.
    Settled,
}

/// An authority whose key is in the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Its times.
    pub life: Life,
    /// Who trusts it.
    pub trust: Trust,
}

impl Authority {
    /// Whether it is so near its end that its successor has to issue, trusted by all or not: replicas, which hold a pair back as long as
    /// they are better off with the old one, must have the new one before that ends.
    fn is_ending(self, now: i64) -> bool {
        let whole = self.life.not_after - self.life.not_before;
        self.life.not_after - ENDING.min(whole / 100) < now
    }
}

/// The serving certificate in the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// It is issued by the current authority, for our names, and its key is there.
    Good(Life),
    /// It is of no use: why.
    Bad(String),
}

/// What the Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// It holds nothing of what it is for.
    pub is_empty: bool,
    /// This process knows what it held when it was last good, and that would still be.
    pub is_remembered: bool,
    /// The authority that issues, if what it issues is of use.
    pub current: Option<Authority>,
    /// The authority that joined the bundle last, and does not issue yet.
    pub next: Option<Authority>,
    /// The serving certificate.
    pub leaf: Leaf,
    /// Why what its authority issues would be of no use, if it would not: that is no current authority.
    pub useless: Option<String>,
    /// What it holds beside that and should not.
    pub clutter: Option<String>,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// What it held when it was last good is put back.
    Restore,
    /// A new authority joins the bundle.
    Join(Why),
    /// The authority that joined last issues from now on, and issues the serving certificate.
    Promote(Why),
    /// The current authority issues a new serving certificate.
    Issue(Why),
    /// What should not be there is taken out.
    Tidy(String),
    /// A new authority waits to be trusted.
    Wait,
    /// An authority is not valid yet: somebody's clock is wrong, and what would be made by it might be of no use to others.
    Doubt,
    /// All is well.
    Rest,
}

/// Why something is made anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// There was none.
    None,
    /// Two thirds of its life are over.
    Due,
    /// What there is, is of no use.
    Bad(String),
    /// All API servers know the new authority.
    Trusted,
    /// Some entry does not trust the new authority, and there is nothing else to serve with.
    Overdue,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "there was none",
            Self::Due => "two thirds of its life are over",
            Self::Bad(why) => why,
            Self::Trusted => "the stored webhook configuration trusts the new authority",
            Self::Overdue => {
                "there is nothing else to serve with, though not every stored entry trusts the new authority"
            }
        })
    }
}

/// How long a serving certificate lives, in seconds; never longer than its authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The life of an authority.
    pub authority: i64,
    /// The life of a serving certificate.
    pub certificate: i64,
}

impl Terms {
    /// The life of a serving certificate that is issued now.
    #[must_use]
    pub fn leaf(self, issuer: Life, now: i64) -> Life {
        let life = Life::from(now, self.certificate);
        Life {
            not_before: life.not_before.max(issuer.not_before),
            not_after: life.not_after.min(issuer.not_after),
        }
    }
}

/// The next step, at this time in seconds since the Unix epoch.
#[must_use]
pub fn plan(facts: &Facts, terms: Terms, now: i64) -> Step {
    if facts.is_empty && facts.is_remembered {
        return Step::Restore;
    }
    let is_early = |authority: Option<Authority>| authority.is_some_and(|authority| now < authority.life.not_before);
    let step = by_the_clock(facts, terms, now);
    // Another authority in place of one that is not valid yet would take its key away, or the place of its successor.
    if is_early(facts.current) || matches!(step, Step::Join(_)) && is_early(facts.next) {
        return Step::Doubt;
    }
    step
}

/// The next step, if the clock is right.
fn by_the_clock(facts: &Facts, terms: Terms, now: i64) -> Step {
    let living = |authority: Option<Authority>| authority.filter(|authority| authority.life.holds(now));
    let (current, next) = (living(facts.current), living(facts.next));
    let leaf = match &facts.leaf {
        Leaf::Good(life) if life.holds(now) => Ok(*life),
        Leaf::Good(life) if now < life.not_before => Err(Why::Bad("it is not valid yet".into())),
        Leaf::Good(_) => Err(Why::Bad("it expired".into())),
        Leaf::Bad(_) if facts.is_empty => Err(Why::None),
        Leaf::Bad(why) => Err(Why::Bad(why.clone())),
    };
    if let Some(next) = next {
        if next.trust == Trust::Settled {
            return Step::Promote(Why::Trusted);
        }
        let served = current.is_some_and(|current| !current.is_ending(now)) && leaf.is_ok();
        if !served && next.life.made() + PATIENCE <= now {
            return Step::Promote(Why::Overdue);
        }
    }
    let Some(current) = current else {
        return match (next, &facts.current) {
            (Some(_), _) => Step::Wait,
            (None, Some(_)) => Step::Join(Why::Bad("it expired".into())),
            (None, None) if facts.is_empty => Step::Join(Why::None),
            (None, None) => Step::Join(Why::Bad(match &facts.useless {
                Some(why) => format!("what the authority would issue is of no use: {why}"),
                None => "there is no authority whose key and certificate are both there".into(),
            })),
        };
    };
    match leaf {
        // One that nobody has been served with may wait for its authority to be trusted; so a new one may.
        Err(why) if current.trust != Trust::Missing || next.is_none() && overdue(current, now) => {
            return Step::Issue(why);
        }
        Ok(life) if life.due() <= now && terms.leaf(current.life, now).not_after > life.not_after => {
            return Step::Issue(Why::Due);
        }
        Ok(_) if next.is_none() && current.life.due() <= now => return Step::Join(Why::Due),
        Ok(_) if next.is_none() => {}
        Ok(_) | Err(_) => return Step::Wait,
    }
    match &facts.clutter {
        Some(clutter) => Step::Tidy(clutter.clone()),
        None => Step::Rest,
    }
}

fn overdue(authority: Authority, now: i64) -> bool {
    authority.life.made() + PATIENCE <= now
}

#[cfg(test)]
mod tests;
