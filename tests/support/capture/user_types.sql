-- Types as users make them, each kind standing on others.
create type mood as enum ('sad', 'so so', 'happy', 'a "quoted" one', '');
create domain label as text collate "C";
create domain short_label as label check (value <> 'never');
create domain amount as numeric(10, 2);
create domain fee as amount;
create domain names as text[];
create type mood_range as range (subtype = mood);
create type label_range as range (subtype = short_label, collation = "C");
create type nothing as ();
create type single as (only_field text);
create type item as ("the Name" short_label, tags text[], prices fee[], moods mood[], "it's" jsonb, span mood_range, at timestamptz);
create type parcel as (items item[], first_item item, spans label_multirange, labels names, all_labels names[], none nothing, one single);
create table shipment (id bigint primary key, parcel parcel, gone int, costs amount);
alter table shipment drop column gone;
