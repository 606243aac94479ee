-- name: grant_appending
-- What an application needs to append, in its transactions or by a producer. It cannot read what others have appended.
grant usage on schema headwater to {role};
grant select on headwater.migration, headwater.topic, headwater.topic_partition to {role};
grant insert on headwater.topic_staged, headwater.topic_commit to {role};
grant select, insert, delete on headwater.topic_producer to {role};

-- name: grant_appending_to
-- Segments are reached by way of the log, whose rights count.
grant select (partition, last_offset, segment), insert on {log} to {role};

-- name: grant_reading
-- What a member of a group needs, beside what appending takes: whoever reads numbers what was staged.
grant select, delete on headwater.topic_staged, headwater.topic_commit to {role};
grant select, insert, update, delete
   on headwater.topic_group, headwater.topic_cursor, headwater.topic_member, headwater.topic_claim, headwater.topic_dead_letter
   to {role};
grant select on headwater.topic_lag to {role};

-- name: grant_reading_from
grant select on {log} to {role};

-- name: measure_topics
-- What each topic takes of the disk, in how many segments, how many groups read it, and how many appends wait for offsets.
select topic.id,
       coalesce(sum(pg_catalog.pg_total_relation_size(segment.inhrelid)), 0)::bigint as bytes,
       count(segment.inhrelid) as segments,
       (select count(*) from headwater.topic_group as reader where reader.topic_id = topic.id) as groups,
       (select count(*) from headwater.topic_commit as waiting where waiting.topic_id = topic.id) as waiting
  from headwater.topic
  left join pg_catalog.pg_inherits as segment
    on segment.inhparent = pg_catalog.to_regclass('headwater.topic_log_' || topic.id)
 group by topic.id;

-- name: count_dead
select group_id, count(*) as letters from headwater.topic_dead_letter group by group_id;
