//! Who consumes which queue. Pure: all who compute it from the same two lists agree.

/// The part of `queues` that falls to `member`: consecutive runs, the first members get one more if it does not come
/// out even. Both lists must be sorted, and the same at every member.
///
/// Empty if `member` is not among `members`.
#[must_use]
pub fn allocate_average<'a, Q>(queues: &'a [Q], members: &[String], member: &str) -> &'a [Q] {
    let Some(index) = members.iter().position(|other| other == member) else { return &[] };
    let share = queues.len().checked_div(members.len()).unwrap_or(0);
    let rest = queues.len().checked_rem(members.len()).unwrap_or(0);
    let start = index.saturating_mul(share).saturating_add(index.min(rest));
    let len = share.saturating_add(usize::from(index < rest));
    queues.get(start..start.saturating_add(len)).unwrap_or_default()
}

/// The part of `queues` that falls to `member` if they are dealt out in turn. As [`allocate_average`] otherwise.
#[must_use]
pub fn allocate_by_circle<Q: Clone>(queues: &[Q], members: &[String], member: &str) -> Vec<Q> {
    let Some(index) = members.iter().position(|other| other == member) else { return Vec::new() };
    queues.iter().skip(index).step_by(members.len()).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(queues: usize, members: usize, expected: &[&[usize]]) {
        let queues: Vec<usize> = (0..queues).collect();
        let members: Vec<String> = (0..members).map(|number| format!("m{number}")).collect();
        let shares: Vec<&[usize]> = members.iter().map(|member| allocate_average(&queues, &members, member)).collect();
        assert_eq!(shares, expected);
    }

    #[test]
    fn queues_are_shared_in_consecutive_runs() {
        check(4, 2, &[&[0, 1], &[2, 3]]);
        check(8, 3, &[&[0, 1, 2], &[3, 4, 5], &[6, 7]]);
        check(7, 3, &[&[0, 1, 2], &[3, 4], &[5, 6]]);
        check(2, 3, &[&[0], &[1], &[]]);
        check(0, 2, &[&[], &[]]);
        check(3, 1, &[&[0, 1, 2]]);
    }

    #[test]
    fn queues_are_dealt_out_in_turn() {
        let members = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        assert_eq!(allocate_by_circle(&[0, 1, 2, 3], &members, "a"), [0, 3]);
        assert_eq!(allocate_by_circle(&[0, 1, 2, 3], &members, "c"), [2]);
        assert!(allocate_by_circle(&[0], &members, "b").is_empty());
    }

    #[test]
    fn stranger_gets_nothing() {
        assert!(allocate_average(&[1, 2], &["a".into()], "b").is_empty());
        assert!(allocate_average::<u8>(&[], &[], "b").is_empty());
        assert!(allocate_by_circle(&[1, 2], &["a".into()], "b").is_empty());
    }
}
