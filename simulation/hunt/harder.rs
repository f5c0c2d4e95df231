//! Whether a planted bug has become five times harder to find: a sequential test of two rates.
//!
//! After each world, the likelihood of all worlds so far at the rate of the table is divided by their
//! likelihood at a fifth of it (Wald 1945). Only the table's own worlds tell its rate, so both
//! likelihoods are means over the rates that these allow. For a bug that is found as often as before,
//! the ratio ever falls below [`ALARM`] with at most that probability, in the mean of these rates (Ville
//! 1939). For a single rate the probability may be a few times higher.

/// What counts as much harder: a rate that is lower by this factor.
const FACTOR: f64 = 5.0;
/// At this ratio, a bug counts as harder to find.
const ALARM: f64 = 1e-5;
/// At this ratio, a bug counts as found as before. One of so many that are five times harder to find is
/// overlooked.
const CALM: f64 = 10.0;
/// How many rates are compared, from `RATE_MIN` to 1.
const RATES: usize = 64;
const RATE_MIN: f64 = 1e-4;

/// What a comparison has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The bug is not five times harder to find.
    AsBefore,
    /// It is, or nearly.
    Harder,
}

/// The comparison of worlds of today with those of the table.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Possible rates of the table, the likelihood of all worlds at each of them, and the likelihood if
    /// today's worlds have a fifth of that rate.
    rates: [(f64, f64, f64); RATES],
}

/// How many times likelier so many finds are at their own rate than at a fifth of it.
pub(super) fn certainty(found: u64, worlds: u64) -> f64 {
    let (found, missed) = (found as f64, worlds.saturating_sub(found) as f64);
    let rate = found / worlds.max(1) as f64;
    if missed == 0.0 {
        return FACTOR.powf(found);
    }
    FACTOR.powf(found) * ((1.0 - rate) / (1.0 - rate / FACTOR)).powf(missed)
}

impl Comparison {
    /// With a bug that was found in `found` of `worlds` worlds.
    pub(super) fn with(found: u64, worlds: u64) -> Comparison {
        let likelihood = |rate: f64| {
            let missed = worlds.saturating_sub(found) as f64;
            found as f64 * rate.ln() + missed * (-rate).ln_1p()
        };
        // All orders of magnitude are equally likely beforehand.
        let rate = |number: usize| RATE_MIN.powf((number as f64 + 0.5) / RATES as f64);
        let most = (0..RATES).map(|number| likelihood(rate(number))).fold(f64::MIN, f64::max);
        Comparison {
            rates: std::array::from_fn(|number| {
                let rate = rate(number);
                let weight = (likelihood(rate) - most).exp();
                (rate, weight, weight)
            }),
        }
    }

    /// Adds a world of today. Returns what is certain enough after it.
    pub(super) fn add(&mut self, found: bool) -> Option<Outcome> {
        let (mut as_before, mut harder) = (0.0, 0.0);
        for (rate, one, other) in &mut self.rates {
            let lower = *rate / FACTOR;
            *one *= if found { *rate } else { 1.0 - *rate };
            *other *= if found { lower } else { 1.0 - lower };
            as_before += *one;
            harder += *other;
        }
        // Only the ratio matters, and the numbers must not vanish.
        for (_, one, other) in &mut self.rates {
            *one /= harder;
            *other /= harder;
        }
        match as_before / harder {
            ratio if ratio <= ALARM => Some(Outcome::Harder),
            ratio if ratio >= CALM => Some(Outcome::AsBefore),
            _ => None,
        }
    }
}
