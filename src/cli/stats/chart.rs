//! Numbers as rows of characters. Owns no output and asks no terminal.

/// What the terminal can draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Characters {
    /// Block elements.
    Blocks,
    /// Nothing but ASCII.
    Ascii,
}

/// Stands for a count of zero, so that one of a thousand and none at all look different.
const ZERO: char = '.';
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 8] = [':', '-', '=', '+', '*', '%', '#', '@'];

/// One character for each number, or for each sum of neighbours where there are more than `width`. The highest has the
/// highest character.
pub(super) fn sparkline(numbers: &[i64], width: usize, characters: Characters) -> String {
    let columns = gather(numbers, width);
    let highest = columns.iter().copied().max().unwrap_or(0);
    let levels = match characters {
        Characters::Blocks => BLOCKS,
        Characters::Ascii => ASCII,
    };
    columns
        .iter()
        .map(|&number| {
            if number <= 0 {
                return ZERO;
            }
            let eighths = (i128::from(number) * 8 - 1) / i128::from(highest);
            levels[usize::try_from(eighths).unwrap_or(0).min(levels.len() - 1)]
        })
        .collect()
}

/// A bar that is full only when `part` is all of `whole`, and empty only when it is nothing; in one character only the first holds.
pub(super) fn bar(part: i64, whole: i64, width: usize, characters: Characters) -> String {
    let wide = i128::try_from(width).unwrap_or(0);
    let (part, whole) = (i128::from(part), i128::from(whole));
    let filled = match part {
        _ if whole <= 0 || part <= 0 => 0,
        _ if part >= whole => wide,
        _ => (wide * part / whole).max(1).min((wide - 1).max(0)),
    };
    let filled = usize::try_from(filled).unwrap_or(0);
    let (full, empty) = match characters {
        Characters::Blocks => ("█", "░"),
        Characters::Ascii => ("#", "-"),
    };
    format!("{}{}", full.repeat(filled), empty.repeat(width - filled))
}

/// At most `width` sums of equally many neighbours; the last may have fewer.
fn gather(numbers: &[i64], width: usize) -> Vec<i64> {
    let each = numbers.len().div_ceil(width.max(1)).max(1);
    numbers
        .chunks(each)
        .map(|chunk| {
            chunk
                .iter()
                .fold(0, |sum: i64, &number| sum.saturating_add(number))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sparkline_tells_none_from_few_and_few_from_most() {
        assert_eq!(
            sparkline(&[0, 1, 500, 1000], 10, Characters::Blocks),
            ".▁▄█"
        );
        assert_eq!(sparkline(&[0, 1, 500, 1000], 10, Characters::Ascii), ".:+@");
        assert_eq!(sparkline(&[], 10, Characters::Blocks), "");
        assert_eq!(sparkline(&[0, 0], 10, Characters::Blocks), "..");
        assert_eq!(sparkline(&[3, 3], 10, Characters::Ascii), "@@");
    }

    #[test]
    fn a_bar_is_full_only_for_all_and_empty_only_for_none() {
        assert_eq!(bar(999_999, 1_000_000, 4, Characters::Ascii), "###-");
        assert_eq!(bar(1, 1_000_000, 4, Characters::Ascii), "#---");
        assert_eq!(bar(4, 4, 4, Characters::Blocks), "████");
        assert_eq!(bar(0, 4, 4, Characters::Blocks), "░░░░");
        assert_eq!(bar(0, 0, 4, Characters::Ascii), "----");
    }

    proptest! {
        #[test]
        fn a_chart_never_is_wider_than_its_room(
            numbers in prop::collection::vec(any::<i64>(), 0..300), width in 1_usize..100, part: i64, whole: i64,
        ) {
            let drawn = sparkline(&numbers, width, Characters::Ascii);
            prop_assert!(drawn.len() <= width);
            prop_assert_eq!(bar(part, whole, width, Characters::Ascii).len(), width);
        }
    }
}
