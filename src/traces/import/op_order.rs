//! Determines the order in which the rows of operations are emitted. The rows of operations are sorted by the call that
//! launched the operation, and for each call by time.

use super::op_records::{OpRecord, OpRecords};

/// Order in which the operations of a trace are emitted.
pub(super) struct OpOrder {
    /// Indexes of the operations in the order of emission. Operations without a call come first. The field is `None` if
    /// all operations have a call and are already stored in this order, which is usual for a trace of one stream.
    order: Option<Vec<u32>>,
    /// Number of operations that are not linked to a call.
    orphans: usize,
}

impl OpOrder {
    pub(super) fn of(ops: &OpRecords) -> Self {
        let key = |op: OpRecord<'_>| (op.call(), op.start);
        if ops.iter().next().is_none_or(|op| op.call().is_some()) && ops.iter().map(key).is_sorted() {
            return Self { order: None, orphans: 0 };
        }
        let mut order: Vec<u32> = (0..ops.len() as u32).collect();
        order.sort_by_key(|&at| key(ops.get(at)));
        let orphans = order.partition_point(|&at| ops.get(at).call().is_none());
        Self { order: Some(order), orphans }
    }

    /// Whether the operations are already stored in the order in which they are emitted.
    pub(super) fn is_as_stored(&self) -> bool {
        self.order.is_none()
    }

    /// Returns the indexes of the operations without a call.
    pub(super) fn orphans(&self) -> &[u32] {
        self.order.as_deref().map_or(&[], |order| &order[..self.orphans])
    }

    /// Returns the index of the operation at the position `at` among the operations that have a call.
    pub(super) fn linked(&self, at: usize) -> u32 {
        self.order.as_ref().map_or(at as u32, |order| order[self.orphans + at])
    }
}

#[cfg(test)]
mod tests {
    use super::super::op_records::OpShape;
    use super::*;
    use gpuflame_model::record::Detail;

    /// Creates operations from pairs of start time and call, and determines their order.
    fn order(ops: &[(i64, Option<u32>)]) -> (bool, Vec<u32>, Vec<u32>) {
        let (process, lane, device, context, stream, graph, graph_node) = (1, 2, 0, 1, 7, 0, 0);
        let (place_in_lane, detail) = (false, Detail::Graph);
        let shape =
            OpShape { process, place_in_lane, lane, device, context, stream, graph, graph_node, detail };
        let mut records = OpRecords::default();
        for (start, call) in ops {
            let number = records.push((*start, *start), 0, shape);
            if let Some(call) = call {
                records.link(number, *call, 0);
            }
        }
        let order = OpOrder::of(&records);
        let linked = (0..ops.len() - order.orphans().len()).map(|at| order.linked(at)).collect();
        (order.is_as_stored(), order.orphans().to_vec(), linked)
    }

    #[test]
    fn operations_are_ordered_by_call_and_start() {
        assert_eq!(order(&[(5, Some(0)), (3, Some(1)), (4, Some(1))]), (true, vec![], vec![0, 1, 2]));
        assert_eq!(order(&[(5, Some(0)), (4, Some(1)), (3, Some(1))]), (false, vec![], vec![0, 2, 1]));
        assert_eq!(
            order(&[(5, Some(1)), (9, None), (2, Some(0)), (8, None)]),
            (false, vec![3, 1], vec![2, 0])
        );
        assert_eq!(order(&[(1, None), (2, Some(0))]), (false, vec![0], vec![1]));
        assert_eq!(order(&[]), (true, vec![], vec![]));
    }
}
