//! `Graphs` finds the creator of a CUDA graph node. The creator is the launch context (stack and API call) in which the
//! node was created. The creator is derived from the rows about graphs.
//!
//! ```text
//! graph 3   node 10 11 12 13   -> a table: 8 bytes per node, the offset of its id from the first, and a context
//! graph 4   a copy of 3        -> graph 3's table, and the distance between copies and originals
//! graph 5   another copy       -> the same
//! ```
//!
//! A copy of a graph can outlive the original. For example, a graph can be instantiated twice, and can be destroyed
//! while its instantiations exist. So a table of nodes is kept until no graph uses this table any more. A destroyed
//! graph may still be running, so its nodes are kept until CUPTI was flushed twice. The newest few thousand destroyed
//! graphs are kept even longer.
//!
//! If an instantiation of a graph is updated, the work of its nodes changes, and therefore their creators change too. A
//! launch that was made before an update ran the old nodes. The correlation id of a launch shows whether the launch was
//! made before an update of the graph.
//!
//! The creator is looked up once per activity, when the activity record is read, and is then stored in the activity.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};

use gpuflame_model::record::{
    Activity, Caller, ContextId, CorrelationId, Created, Detail, GraphId, GraphNodeId, IdMap, Row, map_bytes,
};

/// Number of flushes of CUPTI after which no more work of a destroyed graph is expected. One flush is not enough,
/// because the flush may have begun before the graph's last launch completed.
const FLUSHES_UNTIL_FINISHED: u64 = 2;
/// Number of destroyed graphs, and number of nodes in destroyed graphs, that are kept even after
/// [`FLUSHES_UNTIL_FINISHED`] flushes. A kernel of a destroyed graph may still be running after these flushes. The
/// destroyed graphs that are kept take 1 MiB, and the nodes of these graphs also take 1 MiB.
const MIN_KEPT_GRAPHS: usize = 1 << 12;
const MIN_KEPT_NODES: usize = 1 << 16;
/// Number of earlier states of updated instantiations that are kept even after [`FLUSHES_UNTIL_FINISHED`] flushes.
const MIN_KEPT_PASTS: usize = 1 << 10;

/// Creators of all graph nodes that are known. See the module's documentation.
#[derive(Debug, Default)]
pub struct Graphs {
    groups: IdMap<GraphId, NodeGroup>,
    /// First node id of each group, used to look up nodes whose group is unknown.
    firsts: BTreeSet<(u64, GraphId)>,
    /// Largest difference between the first and the last node id of a group, among all groups so far.
    widest: u64,
    tables: Vec<NodeTable>,
    /// Positions in `tables` that contain no table.
    free: Vec<u32>,
    /// Group in which the last look-up found a node.
    last: GraphId,
    /// Lowest node id that occurred in any row so far.
    lowest: Option<u64>,
    /// Earlier states of each updated instantiation. The oldest state comes first.
    pasts: IdMap<GraphId, VecDeque<PastGroup>>,
    /// The updated instantiations, in the order of their updates. Each entry contains the number of flushes before the
    /// update.
    updated: VecDeque<(GraphId, u64)>,
    destroyed: VecDeque<DestroyedGraph>,
    destroyed_nodes: usize,
    flushes: u64,
    tally: NodeTally,
}

/// Number of activities that ran graph nodes, grouped by what is known about the creator of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeTally {
    /// Number of activities that ran a node with a known creating stack.
    pub created: u64,
    /// Number of activities that ran a node of a graph created before recording began.
    pub before_recording: u64,
    /// Number of activities that ran a node whose creator is unknown.
    pub unknown: u64,
}

impl NodeTally {
    /// Returns pairs of a word and a count, in the order in which the ledger prints them.
    pub fn parts(&self) -> [(&'static str, u64); 3] {
        [
            ("created", self.created),
            (Created::BeforeRecording.word(), self.before_recording),
            (Created::Unknown.word(), self.unknown),
        ]
    }

    /// Returns the total number of activities.
    pub fn seen(&self) -> u64 {
        self.created + self.before_recording + self.unknown
    }

    /// Counts one activity that ran a graph node.
    pub fn add(&mut self, created: Created) {
        match created {
            Created::Context(_) => self.created += 1,
            Created::BeforeRecording => self.before_recording += 1,
            Created::Unknown => self.unknown += 1,
        }
    }
}

/// The nodes of one graph, or of one instantiation of a graph. All nodes in a group are created and destroyed together.
#[derive(Clone, Copy, Debug)]
struct NodeGroup {
    table: u32,
    /// Difference between the id of a node and the node's id in the table. The difference is 0 if the group owns the
    /// table.
    shift: u64,
    first: u64,
    last: u64,
    /// Whether the table of nodes that this group uses is owned by a different group.
    shared: bool,
    /// Whether the graph or instantiation was destroyed. CUPTI reports the destruction of an instantiation twice: for
    /// the instantiation and for the graph from which it was made.
    ended: bool,
}

/// Table of the creators of nodes, in ascending order of node ids.
#[derive(Debug, Default)]
struct NodeTable {
    /// Sections of the table, in ascending order of node ids. A table usually has only one section. The upper half of a
    /// node's id is the id of its graph, so the table of a graph with child graphs has one section per graph.
    sections: Vec<TableSection>,
    users: u32,
}

/// A section of a table of nodes ([`NodeTable`]). The ids of the nodes in a section differ by less than 2^32.
#[derive(Debug)]
struct TableSection {
    base: u64,
    entries: Vec<NodeEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeEntry {
    /// Id of the node minus the section's `base`.
    offset: u32,
    /// Launch context that created the node, or the reason why this context is unknown.
    creator: Caller,
}

const _: () = assert!(size_of::<NodeEntry>() == 8, "a graph node grew: with a vector's slack it may cost 16");

/// State that a group of graph nodes had before an update. `until` is the correlation id of the call that updated the
/// group.
#[derive(Debug)]
struct PastGroup {
    until: CorrelationId,
    group: NodeGroup,
}

#[derive(Debug)]
struct DestroyedGraph {
    graph: GraphId,
    flush: u64,
    nodes: usize,
}

impl Graphs {
    /// Processes a row about graphs, and ignores all other rows.
    pub fn push(&mut self, row: &Row<'_>) {
        match *row {
            Row::GraphNode { graph, node, context } => self.add(graph, node.0, Caller::creator(context)),
            Row::GraphClone { graph, node, original } => self.copy(graph, node.0, original.0),
            Row::GraphUpdate { graph, source, correlation } => self.update(graph, source, correlation),
            Row::GraphEnd { graph } => self.end(graph),
            _ => {}
        }
    }

    /// Sets the field `created` of an activity that ran a graph node.
    pub fn resolve(&mut self, activity: &mut Activity) {
        if let Some(created) = activity.created {
            return self.tally.add(created);
        }
        if !is_node(activity) {
            return;
        }
        // If CUPTI reports that the node was updated from another node, the field is set to the creator of that other
        // node.
        let source = activity.source_node.0;
        let launch = activity.correlation;
        let found = if source == 0 { None } else { self.find(GraphId(0), source, launch) };
        let created = match found.or_else(|| self.find(activity.graph, activity.graph_node.0, launch)) {
            Some(creator) => creator.created(),
            None if self.lowest.is_none_or(|lowest| activity.graph_node.0 < lowest) => {
                Created::BeforeRecording
            }
            None => Created::Unknown,
        };
        self.tally.add(created);
        activity.created = Some(created);
    }

    /// Counts a flush of the tracer. Call this function after the tracer was flushed and all rows that it delivered
    /// were read.
    pub fn flushed(&mut self) {
        self.flushes += 1;
        while self.updated.len() > MIN_KEPT_PASTS
            && self.updated.front().is_some_and(|(_, flush)| flush + FLUSHES_UNTIL_FINISHED <= self.flushes)
        {
            self.forget_oldest_past();
        }
        while self.destroyed.len() > MIN_KEPT_GRAPHS || self.destroyed_nodes > MIN_KEPT_NODES {
            match self.destroyed.front() {
                Some(oldest) if oldest.flush + FLUSHES_UNTIL_FINISHED <= self.flushes => {}
                _ => return,
            }
            if let Some(oldest) = self.destroyed.pop_front() {
                self.destroyed_nodes -= oldest.nodes;
                self.forget(oldest.graph);
            }
        }
    }

    /// Whether the tracer should be flushed soon, because many destroyed graphs are kept until the next flush.
    pub fn wants_flush(&self) -> bool {
        self.destroyed.len() > 2 * MIN_KEPT_GRAPHS || self.destroyed_nodes > 2 * MIN_KEPT_NODES
    }

    /// Returns the contexts that created nodes. A context that created several consecutive nodes of a table is returned
    /// only once for these nodes.
    pub fn contexts(&self) -> impl Iterator<Item = ContextId> {
        let sections = self.tables.iter().flat_map(|table| &table.sections);
        let runs = sections.flat_map(|section| section.entries.chunk_by(|a, b| a.creator == b.creator));
        runs.filter_map(|run| run[0].creator.launched().ok())
    }

    /// Returns the number of activities so far that ran graph nodes, grouped by what is known about the creator of the
    /// node.
    pub fn tally(&self) -> NodeTally {
        self.tally
    }

    /// Returns the size in bytes of the heap memory that `Graphs` uses.
    pub fn heap_bytes(&self) -> usize {
        // On average, the nodes of a B-tree are two thirds full. The inner nodes of a B-tree take about 10 % more
        // memory than the leaf nodes alone.
        let firsts = self.firsts.len() * size_of::<(u64, GraphId)>() * 3 / 2;
        let tables = self.tables.iter().map(NodeTable::heap_bytes);
        map_bytes(&self.groups)
            + firsts
            + self.tables.capacity() * size_of::<NodeTable>()
            + tables.sum::<usize>()
            + self.free.capacity() * size_of::<u32>()
            + map_bytes(&self.pasts)
            + self.pasts.values().map(|pasts| pasts.capacity() * size_of::<PastGroup>()).sum::<usize>()
            + self.updated.capacity() * size_of::<(GraphId, u64)>()
            + self.destroyed.capacity() * size_of::<DestroyedGraph>()
    }
}

/// Methods that create, update and destroy groups of graph nodes.
impl Graphs {
    fn add(&mut self, graph: GraphId, node: u64, creator: Caller) {
        self.lowest = Some(self.lowest.map_or(node, |lowest| lowest.min(node)));
        // CUPTI may report a copied node twice: as created and as copied, in either order.
        if self.creator_in(graph, node).is_none() {
            self.put(graph, node, creator);
        }
    }

    fn copy(&mut self, graph: GraphId, node: u64, original: u64) {
        self.lowest = Some(self.lowest.map_or(node, |lowest| lowest.min(node)));
        let Some(source) = self.group_of(GraphId(0), original) else {
            return self.put(graph, node, Caller::CREATED_BEFORE);
        };
        let from = self.groups[&source];
        let in_table = original.wrapping_sub(from.shift);
        let shift = node.wrapping_sub(in_table);
        match self.groups.get_mut(&graph) {
            None => self.share(graph, from.table, shift, (node, node)),
            Some(group) if group.shared && group.table == from.table && group.shift == shift => {
                if node > group.last
                    && self.tables[from.table as usize].follows(group.last.wrapping_sub(shift), in_table)
                {
                    group.last = node;
                    self.widest = self.widest.max(node - group.first);
                } else {
                    self.insert_copy(graph, node, from.table, in_table);
                }
            }
            Some(_) => self.insert_copy(graph, node, from.table, in_table),
        }
    }

    fn insert_copy(&mut self, graph: GraphId, node: u64, table: u32, in_table: u64) {
        let creator = self.tables[table as usize].get(in_table).unwrap_or(Caller::CREATOR_UNKNOWN);
        self.put(graph, node, creator);
    }

    /// Inserts a group that shares the table of another group. To get a node's id in that table, `shift` is subtracted
    /// from the id of the node.
    fn share(&mut self, graph: GraphId, table: u32, shift: u64, (first, last): (u64, u64)) {
        let shared = &mut self.tables[table as usize];
        shared.users += 1;
        shared.sections.iter_mut().for_each(|section| section.entries.shrink_to_fit());
        self.insert(graph, NodeGroup { table, shift, first, last, shared: true, ended: false });
    }

    fn insert(&mut self, graph: GraphId, group: NodeGroup) {
        self.firsts.insert((group.first, graph));
        self.widest = self.widest.max(group.last - group.first);
        self.groups.insert(graph, group);
    }

    /// Adds a node to the table of its group.
    fn put(&mut self, graph: GraphId, node: u64, creator: Caller) {
        match self.groups.get(&graph) {
            None => {
                let table = self.new_table(NodeTable { sections: Vec::new(), users: 1 });
                self.insert(
                    graph,
                    NodeGroup { table, shift: 0, first: node, last: node, shared: false, ended: false },
                );
            }
            Some(group) if group.shared => {
                let own = self.ids_and_creators(*group).collect();
                self.drop_group(graph);
                self.insert_own_table(graph, own);
            }
            Some(_) => {}
        }
        let Some(group) = self.groups.get_mut(&graph) else { return };
        self.tables[group.table as usize].put(node, creator);
        group.last = group.last.max(node);
        if node < group.first {
            self.firsts.remove(&(group.first, graph));
            group.first = node;
            self.firsts.insert((node, graph));
        }
        self.widest = self.widest.max(group.last - group.first);
    }

    fn ids_and_creators(&self, group: NodeGroup) -> impl Iterator<Item = (u64, Caller)> {
        let sections = self.tables[group.table as usize].sections.iter();
        let all = sections.flat_map(move |section| {
            section.entries.iter().map(move |entry| {
                ((section.base + u64::from(entry.offset)).wrapping_add(group.shift), entry.creator)
            })
        });
        all.filter(move |(id, _)| (group.first..=group.last).contains(id))
    }

    /// Inserts a group that owns a new table with the given `nodes`. `nodes` must not be empty.
    fn insert_own_table(&mut self, graph: GraphId, nodes: Vec<(u64, Caller)>) {
        let (Some(&(first, _)), Some(&(last, _))) = (nodes.first(), nodes.last()) else { return };
        let mut table = NodeTable { sections: Vec::new(), users: 1 };
        for (id, creator) in nodes {
            table.put(id, creator);
        }
        let table = self.new_table(table);
        self.insert(graph, NodeGroup { table, shift: 0, first, last, shared: false, ended: false });
    }

    /// Updates the instantiation `graph` from the graph `source`. The nodes of both graphs are paired in the order of
    /// their ids, which is the order of creation. If the graphs have different numbers of nodes, nothing changes,
    /// because then only CUPTI may know which nodes form a pair. Nothing changes either if both nodes of each pair have
    /// the same creator, as in programs that capture a new graph for each step.
    fn update(&mut self, graph: GraphId, source: GraphId, call: CorrelationId) {
        let (Some(&group), Some(&from)) = (self.groups.get(&graph), self.groups.get(&source)) else { return };
        let mine: Vec<_> = self.ids_and_creators(group).collect();
        let theirs: Vec<_> = self.ids_and_creators(from).collect();
        let same = mine.iter().zip(&theirs).all(|((_, mine), (_, theirs))| mine == theirs);
        let (Some((first, _)), Some((last, _))) = (mine.first(), mine.last()) else { return };
        if same || mine.len() != theirs.len() {
            return;
        }
        self.groups.remove(&graph);
        self.firsts.remove(&(group.first, graph));
        self.pasts.entry(graph).or_default().push_back(PastGroup { until: call, group });
        self.updated.push_back((graph, self.flushes));
        let shift = |((id, _), (their, _)): (&(u64, Caller), &(u64, Caller))| {
            id.wrapping_sub(their.wrapping_sub(from.shift))
        };
        let shift_of_all = shift((&mine[0], &theirs[0]));
        if mine.iter().zip(&theirs).all(|pair| shift(pair) == shift_of_all) {
            self.share(graph, from.table, shift_of_all, (*first, *last));
        } else {
            let creators = theirs.into_iter().map(|(_, creator)| creator);
            self.insert_own_table(graph, mine.iter().map(|(id, _)| *id).zip(creators).collect());
        }
    }

    fn end(&mut self, graph: GraphId) {
        let Some(group) = self.groups.get_mut(&graph).filter(|group| !group.ended) else { return };
        group.ended = true;
        let nodes = if group.shared { 0 } else { self.tables[group.table as usize].len() };
        self.destroyed_nodes += nodes;
        self.destroyed.push_back(DestroyedGraph { graph, flush: self.flushes, nodes });
    }

    fn forget(&mut self, graph: GraphId) {
        self.drop_group(graph);
        // Release memory that is still allocated after a burst of graphs.
        if self.groups.capacity() > 4 * self.groups.len().max(MIN_KEPT_GRAPHS) {
            self.groups.shrink_to(2 * MIN_KEPT_GRAPHS);
            self.destroyed.shrink_to(2 * MIN_KEPT_GRAPHS);
        }
    }

    fn forget_oldest_past(&mut self) {
        let Some((graph, _)) = self.updated.pop_front() else { return };
        let Some(pasts) = self.pasts.get_mut(&graph) else { return };
        let past = pasts.pop_front();
        if pasts.is_empty() {
            self.pasts.remove(&graph);
        }
        if let Some(past) = past {
            self.release(past.group.table);
        }
    }

    fn drop_group(&mut self, graph: GraphId) {
        if let Some(group) = self.groups.remove(&graph) {
            self.firsts.remove(&(group.first, graph));
            self.release(group.table);
        }
    }

    fn new_table(&mut self, table: NodeTable) -> u32 {
        if let Some(at) = self.free.pop() {
            self.tables[at as usize] = table;
            return at;
        }
        self.tables.push(table);
        (self.tables.len() - 1) as u32
    }

    fn release(&mut self, table: u32) {
        let unused = &mut self.tables[table as usize];
        unused.users -= 1;
        if unused.users == 0 {
            *unused = NodeTable::default();
            self.free.push(table);
        }
    }
}

/// Methods that find the creator of a node when an activity arrives.
impl Graphs {
    /// Returns the creator that a node had when the launch with the id `launch` was made. `graph` is the group that is
    /// most likely to contain the node.
    fn find(&mut self, graph: GraphId, node: u64, launch: CorrelationId) -> Option<Caller> {
        let found = self.group_of(graph, node)?;
        self.last = found;
        let past = self.past_of(found, launch).and_then(|past| self.creator_of(past, node));
        past.or_else(|| self.creator_in(found, node))
    }

    /// Returns the state that a group had when the launch with the id `launch` was made. Returns `None` if the group of
    /// nodes was not updated after that launch.
    fn past_of(&self, graph: GraphId, launch: CorrelationId) -> Option<&NodeGroup> {
        let pasts = self.pasts.get(&graph)?;
        let at = pasts.partition_point(|past| !launch.is_before(past.until));
        pasts.get(at).map(|past| &past.group)
    }

    /// Returns the group of nodes that contains a node. First, the function looks in the group `graph`. Then it looks
    /// in the graph whose id is the upper half of the node's id (driver 580), and finally in the group that the
    /// previous call found. If two threads create graphs at the same time, the node ids of two groups may interleave.
    fn group_of(&self, graph: GraphId, node: u64) -> Option<GraphId> {
        let of_id = GraphId((node >> 32) as u32);
        let likely =
            [graph, of_id, self.last].into_iter().find(|likely| self.creator_in(*likely, node).is_some());
        likely.or_else(|| {
            let before = self.firsts.range(..=(node, GraphId(u32::MAX))).rev();
            before
                .take_while(|(first, _)| node - first <= self.widest)
                .map(|(_, graph)| *graph)
                .find(|graph| self.creator_in(*graph, node).is_some())
        })
    }

    fn creator_in(&self, graph: GraphId, node: u64) -> Option<Caller> {
        self.creator_of(self.groups.get(&graph)?, node)
    }

    fn creator_of(&self, group: &NodeGroup, node: u64) -> Option<Caller> {
        let in_group = (group.first..=group.last).contains(&node);
        if in_group { self.tables[group.table as usize].get(node.wrapping_sub(group.shift)) } else { None }
    }
}

impl NodeTable {
    fn put(&mut self, node: u64, creator: Caller) {
        let Some((section, offset)) = self.section_of(node) else {
            let at = self.sections.partition_point(|section| section.base < node);
            let entries = vec![NodeEntry { offset: 0, creator }];
            return self.sections.insert(at, TableSection { base: node, entries });
        };
        let section = &mut self.sections[section];
        let entry = NodeEntry { offset, creator };
        match section.position(offset) {
            Ok(at) => section.entries[at] = entry,
            Err(at) => section.entries.insert(at, entry),
        }
    }

    fn get(&self, node: u64) -> Option<Caller> {
        let (section, offset) = self.section_of(node)?;
        let section = &self.sections[section];
        section.position(offset).ok().map(|at| section.entries[at].creator)
    }

    /// Whether the node `next` directly follows the node `node` in the same section of the table.
    fn follows(&self, node: u64, next: u64) -> bool {
        let (Some((section, node)), Some((other, next))) = (self.section_of(node), self.section_of(next))
        else {
            return false;
        };
        let is_next =
            |at: usize| self.sections[section].entries.get(at + 1).is_some_and(|e| e.offset == next);
        section == other && self.sections[section].position(node).is_ok_and(is_next)
    }

    /// Returns the index of the section that contains the id `node`, and the offset of `node` from the section's
    /// `base`.
    fn section_of(&self, node: u64) -> Option<(usize, u32)> {
        let at = self.sections.partition_point(|section| section.base <= node).checked_sub(1)?;
        Some((at, u32::try_from(node - self.sections[at].base).ok()?))
    }

    fn len(&self) -> usize {
        self.sections.iter().map(|section| section.entries.len()).sum()
    }

    fn heap_bytes(&self) -> usize {
        let entries: usize = self.sections.iter().map(|section| section.entries.capacity()).sum();
        self.sections.capacity() * size_of::<TableSection>() + entries * size_of::<NodeEntry>()
    }
}

impl TableSection {
    /// Returns the position of an offset in the section's `entries`. If no entry has this offset, returns the position
    /// at which to insert an entry as an error. Node ids usually have no gaps, so an entry's position is usually equal
    /// to its offset.
    fn position(&self, offset: u32) -> Result<usize, usize> {
        match self.entries.get(offset as usize) {
            Some(entry) if entry.offset == offset => Ok(offset as usize),
            _ => match self.entries.last() {
                Some(last) if last.offset < offset => Err(self.entries.len()),
                _ => self.entries.binary_search_by_key(&offset, |entry| entry.offset),
            },
        }
    }
}

/// Whether `activity` ran a graph node. [`Graphs::resolve`] can find the creator of a node that an activity ran.
pub fn is_node(activity: &Activity) -> bool {
    activity.graph_node != GraphNodeId(0) && activity.detail != Detail::Graph
}
