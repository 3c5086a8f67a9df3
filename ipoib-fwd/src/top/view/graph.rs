//! Values as block characters: the history of a rate, and a level.

const EIGHTHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const PARTS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// A line of blocks of `width` characters, the newest at the right; the maximum has full height.
pub(super) fn line(values: &[f64], width: usize) -> String {
    let highest = values.iter().copied().fold(0.0, f64::max);
    let block = |value: &f64| {
        if highest <= 0.0 || *value <= 0.0 {
            return ' ';
        }
        let at = (value / highest * 8.0).ceil() as usize;
        EIGHTHS.get(at.saturating_sub(1)).copied().unwrap_or('█')
    };
    let values = &values[values.len().saturating_sub(width)..];
    let blank = width - values.len();
    std::iter::repeat_n(' ', blank).chain(values.iter().map(block)).collect()
}

/// A bar for `share` of `width` characters.
pub(super) fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * 8.0 * width as f64).round() as usize;
    let part = PARTS.get(eighths % 8).filter(|_| !eighths.is_multiple_of(8));
    std::iter::repeat_n('█', eighths / 8).chain(part.copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_at_the_right_and_the_maximum_has_full_height() {
        assert_eq!(line(&[0.0, 1.0, 4.0, 8.0], 6), "   ▁▄█");
        assert_eq!(line(&[9.0, 1.0, 8.0], 2), "▁█");
        assert_eq!((line(&[], 3), line(&[0.0; 5], 3)), ("   ".into(), "   ".into()));
        assert_eq!(line(&[1.0], 0), "");
    }

    #[test]
    fn the_length_of_a_bar_is_its_share() {
        assert_eq!([0.0, 0.5, 0.0625, 1.0, 7.0].map(|share| bar(share, 4)), ["", "██", "▎", "████", "████"]);
        assert_eq!(bar(f64::NAN, 4), "");
    }
}
