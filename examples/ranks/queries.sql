-- The questions that both examples ask of the table `activities`, in SQL that DuckDB and Spark both understand.
-- Each is a view; times are nanoseconds.

-- Work of its own and communication, rank by rank. Whoever has most work holds the others up.
CREATE OR REPLACE TEMPORARY VIEW rank_work AS
SELECT rank,
       CAST(SUM(CASE WHEN kind = 'kernel' AND LOWER(name) LIKE '%nccl%' THEN 0 ELSE duration_ns END) AS BIGINT) AS work_ns,
       CAST(SUM(CASE WHEN kind = 'kernel' AND LOWER(name) LIKE '%nccl%' THEN duration_ns ELSE 0 END) AS BIGINT) AS communication_ns
FROM activities WHERE duration_ns IS NOT NULL GROUP BY rank;

-- For each activity, when its GPU had been busy until then: the union of all activities falls out of it.
CREATE OR REPLACE TEMPORARY VIEW busy_until AS
SELECT rank, device, start_ns, end_ns, launch_ns, launch_duration_ns, stack,
       MAX(end_ns) OVER (PARTITION BY rank, device ORDER BY start_ns, end_ns
                         ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns
FROM activities WHERE duration_ns IS NOT NULL;

CREATE OR REPLACE TEMPORARY VIEW rank_busy AS
SELECT rank, CAST(SUM(CASE WHEN until_ns IS NULL OR start_ns >= until_ns THEN end_ns - start_ns
                           WHEN end_ns > until_ns THEN end_ns - until_ns ELSE 0 END) AS BIGINT) AS busy_ns
FROM busy_until GROUP BY rank;

-- The gaps, by the launch that ended each: was the call made too late, or did the work wait after it?
CREATE OR REPLACE TEMPORARY VIEW idle_causes AS
SELECT CASE WHEN launch_ns IS NULL THEN 'unknown' WHEN launch_ns >= until_ns THEN 'host late' ELSE 'launched in time' END AS cause,
       CAST(SUM(start_ns - until_ns) AS BIGINT) AS total_ns, COUNT(*) AS gaps
FROM busy_until WHERE start_ns > until_ns GROUP BY 1;

CREATE OR REPLACE TEMPORARY VIEW top_stacks AS
SELECT stack, CAST(SUM(duration_ns) AS BIGINT) AS total_ns, COUNT(DISTINCT rank) AS ranks
FROM activities WHERE duration_ns IS NOT NULL AND stack IS NOT NULL GROUP BY stack;
