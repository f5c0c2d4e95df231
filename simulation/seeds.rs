//! Seeds that have found bugs. What a seed does changes with the simulator, so they are not
//! regression tests. They are good places to look.

/// Seeds, each with the bug that it once found.
pub const FOUND: &[(u64, &str)] = &[
    (99, "a write done in what a snapshot stands for was answered as never done"),
    (104, "a lease that had run out was renewed: a lock was held again"),
    (135, "the same"),
    (188, "the same"),
    (67, "a guard was not held at first, and then was: a session's opening had taken long"),
    (1166, "the same: surely alive, then not, then again"),
    (1288, "the same"),
    (1521, "the same"),
    (2157, "the same"),
    (4744, "a refused resumption shut out the session's new holder: its close never came"),
    (5066, "the same"),
    (3940, "a check that asked too much: a snapshot brought two writes at once"),
    (5806, "a check that asked too much: a lock whose session was expired by order"),
    (50278, "learners became voters beside a dead one, and nobody was left to take its vote"),
    (70492, "a removed member never learned of it, since all whom it knew had been replaced"),
    (70669, "the same"),
    (70892, "a check that asked too much: a group's member whose node had too much under way"),
    (210064, "a short session was opened after an idle round, and renewed too late"),
    (200079, "a watch that its client dropped while it moved stayed at the next member"),
    (200432, "a check that asked too much: that a dead learner takes a vote, of its zone"),
    (100209, "one that leaves and cannot go did not say where it had moved to"),
    (72107, "an instance that was alone on its list lost its disk, and founded a second cluster"),
    (72506, "a removed member had applied its removal, and did not say so"),
    (70763, "a dead learner that was never put down stayed a member for long"),
    (
        13856614899058670977,
        "a check that asked too much: one that joined without knowing it was asked to leave",
    ),
    (
        300543,
        "a check that asked too much: the end of a change, by which only former voters go; and two \
         learners that had just died were made voters",
    ),
    (83, "a member's word that it could not serve was lost, and its client waited for it for ever"),
    (
        322856,
        "a check that asked too much: whose messages were late for seconds was taken for gone",
    ),
    (325083, "a check that asked too much: who waits for an item on a node that has just started"),
    (400016, "a check that asked too much: a watch whose past was more than its channel holds"),
    (
        13979068605996142190,
        "a check that asked too much: the version of a dead learner that was never taken for replaced",
    ),
    (1987, "a check that asked too much: an acknowledgement to a leader deposed in the same step"),
    (91015, "a learner that was removed believed in its former leader for ever, and asked nobody"),
    (
        80123,
        "a check that asked too much: a client that was served and lost its member in one step",
    ),
    (
        15538181986965023972,
        "a simulated network kept a connection that its client had left, and never made it again",
    ),
    (
        6927114270443026887,
        "permits that were reserved by a late answer were used long after their moment",
    ),
    (2205717173859520799, "with --disks: without descriptors, a length was set and not synced"),
    (
        3893837691881384906,
        "a check that asked too much, with --disks: damage that a start had not needed was forgotten",
    ),
];
