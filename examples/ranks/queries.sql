-- The queries that both examples run on the table `activities`, in SQL that DuckDB and Spark both understand.
-- Each query creates a view. Times are in ns.

-- Time of communication kernels (NCCL) and of all other GPU work, for each rank. The rank with the least communication
-- arrived last at the collectives, because all other ranks wait for it there.
CREATE OR REPLACE TEMPORARY VIEW rank_work AS
SELECT rank,
       CAST(SUM(CASE WHEN kind = 'kernel' AND LOWER(name) LIKE '%nccl%' THEN 0 ELSE duration_ns END) AS BIGINT) AS work_ns,
       CAST(SUM(CASE WHEN kind = 'kernel' AND LOWER(name) LIKE '%nccl%' THEN duration_ns ELSE 0 END) AS BIGINT) AS communication_ns
FROM activities WHERE duration_ns IS NOT NULL GROUP BY rank;

-- For each activity, the latest end of all earlier activities on its GPU (`until_ns`). The next view computes from it
-- the time during which at least one activity ran.
CREATE OR REPLACE TEMPORARY VIEW busy_until AS
SELECT rank, device, start_ns, end_ns, COALESCE(launch_ns, 0) AS call_ns, COALESCE(launch_duration_ns, 0) AS call_duration_ns,
       MAX(end_ns) OVER (PARTITION BY rank, device
                         ORDER BY start_ns, COALESCE(launch_ns, 0), COALESCE(launch_duration_ns, 0), end_ns
                         ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns
FROM activities WHERE duration_ns > 0;

CREATE OR REPLACE TEMPORARY VIEW rank_busy AS
SELECT rank, CAST(SUM(CASE WHEN until_ns IS NULL OR start_ns >= until_ns THEN end_ns - start_ns
                           WHEN end_ns > until_ns THEN end_ns - until_ns ELSE 0 END) AS BIGINT) AS busy_ns
FROM busy_until GROUP BY rank;

-- The gaps between two activities of a GPU. The call that launched the second activity divides a gap into three parts.
-- Until the call began, the host was late. From then until 10 us after the call returned (or until the activity began,
-- if the duration of the call is unknown or did not fit into 32 bits), the launch was in progress. In the rest of the
-- gap, the activity waited for a dependency. The cause is unknown if the call is unknown, or if the call began after the
-- activity by more than the duration of the gap.
CREATE OR REPLACE TEMPORARY VIEW gaps AS
SELECT until_ns, start_ns, call_ns,
       call_ns = 0 OR call_ns - start_ns > start_ns - until_ns AS is_unknown,
       LEAST(GREATEST(call_ns, until_ns), start_ns) AS called_ns,
       CASE WHEN call_duration_ns IN (0, 4294967295) THEN start_ns
            ELSE LEAST(GREATEST(call_ns + call_duration_ns + 10000, LEAST(GREATEST(call_ns, until_ns), start_ns)), start_ns)
       END AS delivered_ns
FROM busy_until WHERE start_ns > until_ns;

CREATE OR REPLACE TEMPORARY VIEW idle_causes AS
SELECT cause, CAST(SUM(nanos) AS BIGINT) AS total_ns, COUNT(*) AS gaps
FROM (SELECT 'unknown' AS cause, start_ns - until_ns AS nanos FROM gaps WHERE is_unknown
      UNION ALL SELECT 'host_late', called_ns - until_ns FROM gaps WHERE NOT is_unknown
      UNION ALL SELECT 'launch_latency', delivered_ns - called_ns FROM gaps WHERE NOT is_unknown
      UNION ALL SELECT 'dependency', start_ns - delivered_ns FROM gaps WHERE NOT is_unknown) AS parts
WHERE nanos > 0 GROUP BY cause;

-- GPU time by launching stack, and the number of ranks that contribute to it. An activity without a stack is listed
-- under the reason why it has none.
CREATE OR REPLACE TEMPORARY VIEW top_stacks AS
SELECT stack, CAST(SUM(duration_ns) AS BIGINT) AS total_ns, COUNT(DISTINCT rank) AS ranks
FROM (SELECT COALESCE(stack, CONCAT('[', REPLACE(reason, '_', ' '), ']')) AS stack, duration_ns, rank
      FROM activities WHERE duration_ns > 0) AS known
GROUP BY stack;
