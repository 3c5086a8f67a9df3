//! Reordering of bursts.

use std::mem::MaybeUninit;

use arrayvec::ArrayVec;

use crate::hca::BURST;

/// Number of kinds of frames that [`group`] distinguishes.
pub const KINDS: usize = 32;
/// Minimum average number of frames of a kind that justifies reordering.
const WORTH: usize = 3;

/// Groups the frames of a burst by kind and keeps the order within each kind.
///
/// `kinds` contains the kind of each frame, modulo [`KINDS`]. It is a counting sort without unpredictable
/// branches. Returns false and leaves the burst unchanged if grouping does not pay off.
#[inline(always)]
pub fn group<Frame>(burst: &mut ArrayVec<Frame, BURST>, kinds: &[u8; BURST]) -> bool {
    let length = burst.len();
    let kind = |at: &u8| usize::from(*at) % KINDS;
    let mut next = [0u8; KINDS];
    for at in kinds.iter().take(length).map(kind) {
        next[at] += 1;
    }
    // Convert the count of each kind to the index of its first frame.
    let (mut before, mut different) = (0, 0);
    for count in &mut next {
        different += usize::from(*count != 0);
        (*count, before) = (before, before + *count);
    }
    if different == 1 || different * WORTH > length {
        return false;
    }
    let mut grouped = [const { MaybeUninit::<Frame>::uninit() }; BURST];
    for (frame, at) in burst.iter().zip(kinds.iter().map(kind)) {
        // SAFETY: the frame is valid. There are as many slots as frames, and each frame has a slot of its
        // own, because the same kinds were counted above. From here on only the copy is used.
        grouped[usize::from(next[at]) % BURST].write(unsafe { std::ptr::read(frame) });
        next[at] += 1;
    }
    // SAFETY: the first `length` slots are written, see above. The burst has `length` frames, which are not
    // dropped but replaced.
    unsafe { std::ptr::copy_nonoverlapping(grouped.as_ptr().cast::<Frame>(), burst.as_mut_ptr(), length) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the frame numbers in their new order. Each frame is a separate box, so that the allocator
    /// detects lost and duplicate ones.
    fn grouped(kinds: &[u8]) -> Vec<usize> {
        let mut burst: ArrayVec<Box<usize>, BURST> = (0..kinds.len()).map(Box::new).collect();
        let mut of_all = [0; BURST];
        of_all[..kinds.len()].copy_from_slice(kinds);
        let order = burst.iter().map(|frame| **frame).collect::<Vec<_>>();
        if !group(&mut burst, &of_all) {
            assert!(burst.iter().map(|frame| **frame).eq(order));
        }
        burst.into_iter().map(|frame| *frame).collect()
    }

    #[test]
    fn a_kind_is_together_and_in_its_order() {
        assert_eq!(grouped(&[5, 1, 5, 1, 31, 5, 1, 31, 5]), [1, 3, 6, 0, 2, 5, 8, 4, 7]);
        // Frames of kinds that are equal modulo [`KINDS`] keep their order.
        assert_eq!(grouped(&[33, 1, 0, 33, 32, 0]), [2, 4, 5, 0, 1, 3]);
        for kinds in 2..=21 {
            let full: Vec<u8> = (0..BURST as u8).map(|n| n.wrapping_mul(7) % kinds).collect();
            let order = grouped(&full);
            assert!(order.is_sorted_by_key(|n| (full[*n], *n)), "{kinds}: {order:?}");
            assert_eq!(order.len(), BURST);
        }
    }

    #[test]
    fn where_nothing_is_won_all_stay_as_they_came() {
        for kinds in [&[][..], &[9], &[7; 40], &[2, 1, 2, 1, 0], &(0..BURST as u8).rev().collect::<Vec<_>>()]
        {
            assert!(grouped(kinds).is_sorted(), "{kinds:?}");
        }
    }
}
