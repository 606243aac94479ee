-- name: set_session
-- Values must read the same whatever the defaults of server, database and role are: types/ counts on these forms.
set datestyle = 'ISO';
set intervalstyle = 'iso_8601';
set timezone = 'UTC';
set extra_float_digits = 1;
set bytea_output = 'hex';

-- name: read_sender_timeout
-- After how many milliseconds without a sign of life the server gives a reader up; 0 means never.
select setting
  from pg_catalog.pg_settings
 where name = 'wal_sender_timeout';
