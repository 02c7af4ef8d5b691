//! Medians of paired ratios and their confidence intervals.

/// Widest useful interval: as a fraction of the ratio, or of 1 for smaller ratios.
pub const RESOLVED: f64 = 0.05;

/// A ratio of two arms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// Median of the paired ratios.
    pub median: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Pairs.
    pub pairs: usize,
}

impl Ratio {
    /// From the ratios of the pairs. `None` without any.
    ///
    /// The interval is that of the sign test: between two of the sorted ratios, chosen so that the true
    /// median lies outside with a probability of at most 5 %, whatever the distribution. With fewer than six
    /// pairs no such ratios exist and the interval is all of them.
    pub fn of(mut ratios: Vec<f64>) -> Option<Ratio> {
        ratios.sort_by(f64::total_cmp);
        let pairs = ratios.len();
        let (first, last) = (*ratios.first()?, *ratios.last()?);
        let out = ranks_outside(pairs);
        let low = ratios.get(out).copied().unwrap_or(first);
        let high = ratios.get(pairs - 1 - out).copied().unwrap_or(last);
        Some(Ratio { median: median(&ratios)?, low, high, pairs })
    }

    /// From the ratios of the pairs of each opening of the volume. Pairs of one opening share where memory came to
    /// lie and are not independent: the interval is that of the openings' medians. With fewer than six openings, which
    /// leave no such interval, it is that of all pairs.
    pub fn of_openings(openings: Vec<Vec<f64>>) -> Option<Ratio> {
        let all = Self::of(openings.concat())?;
        if openings.len() < 6 {
            return Some(all);
        }
        let medians = openings.into_iter().filter_map(|pairs| Some(Self::of(pairs)?.median)).collect();
        let Ratio { low, high, .. } = Self::of(medians)?;
        Some(Ratio { low: low.min(all.median), high: high.max(all.median), ..all })
    }

    /// Whether the interval is narrow enough.
    pub fn resolved(&self) -> bool {
        self.high - self.low <= RESOLVED * self.median.max(1.0)
    }
}

/// Median of sorted values; the middle of the two in the middle of an even number.
pub fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len().is_multiple_of(2) { Some((sorted[middle - 1] + upper) / 2.0) } else { Some(upper) }
}

/// How many values at each end can be left out: the most with P(Binomial(n, ½) ≤ k) ≤ 2.5 %. The interval
/// then begins with the next one.
fn ranks_outside(count: usize) -> usize {
    let mut probability = 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    if probability == 0.0 {
        return normal_ranks(count);
    }
    // `tail` is P(X ≤ ranks).
    let (mut tail, mut ranks) = (probability, 0);
    while ranks < count / 2 {
        probability *= (count - ranks) as f64 / (ranks + 1) as f64;
        tail += probability;
        if tail > 0.025 {
            break;
        }
        ranks += 1;
    }
    ranks
}

/// The same for numbers whose binomial leaves the range of `f64`, by the normal distribution.
fn normal_ranks(count: usize) -> usize {
    let count = count as f64;
    (count / 2.0 - 1.96 * count.sqrt() / 2.0 - 1.0).floor().max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_sign_test_tables() {
        // Critical values of the two-sided sign test at 5 %.
        for (count, out) in [(1, 0), (5, 0), (6, 0), (8, 0), (10, 1), (20, 5), (25, 7), (40, 13), (100, 39)] {
            assert_eq!(ranks_outside(count), out, "{count}");
        }
        assert!(ranks_outside(2000).abs_diff(normal_ranks(2000)) <= 1);
        assert!(ranks_outside(1000).abs_diff(normal_ranks(1000)) <= 1);
    }

    #[test]
    fn a_ratio_of_known_values() {
        let ratio = Ratio::of((1..=40).rev().map(f64::from).collect()).unwrap();
        assert_eq!(ratio, Ratio { median: 20.5, low: 14.0, high: 27.0, pairs: 40 });
        assert!(!ratio.resolved());
        assert!(Ratio { median: 0.97, low: 0.95, high: 0.99, pairs: 40 }.resolved());
        assert!(Ratio { median: 200.0, low: 196.0, high: 205.0, pairs: 40 }.resolved());
        assert!(!Ratio { median: 0.5, low: 0.47, high: 0.53, pairs: 40 }.resolved());
        assert_eq!(Ratio::of(Vec::new()), None);
        assert_eq!(Ratio::of(vec![2.0]).unwrap().median, 2.0);
    }

    #[test]
    fn openings_that_differ_widen_the_interval() {
        // Ten openings, within each of which all pairs agree.
        let openings: Vec<Vec<f64>> =
            (0..10).map(|opening| vec![1.0 + f64::from(opening) / 100.0; 4]).collect();
        let ratio = Ratio::of_openings(openings.clone()).unwrap();
        assert_eq!((ratio.median, ratio.pairs), (1.045, 40));
        assert_eq!((ratio.low, ratio.high), (1.01, 1.08), "the second and the ninth opening");
        assert!(!ratio.resolved());
        assert!(Ratio::of(openings.concat()).unwrap().resolved(), "as if they were independent");
        let few = openings[..5].to_vec();
        assert_eq!(Ratio::of_openings(few.clone()), Ratio::of(few.concat()));
        assert_eq!(Ratio::of_openings(Vec::new()), None);
    }

    #[test]
    fn the_interval_covers_the_median_as_often_as_it_says() {
        let mut seed = 1;
        let mut uniform = || {
            seed = crate::ops::mix(seed);
            seed as f64 / u64::MAX as f64
        };
        let covered = (0..2000)
            .filter(|_| {
                let ratio = Ratio::of((0..40).map(|_| uniform()).collect()).unwrap();
                ratio.low <= 0.5 && 0.5 <= ratio.high
            })
            .count();
        assert!((1900..=1970).contains(&covered), "{covered} of 2000");
    }
}
