"""What ``LeaseTable`` does to rows, for any DynamoDB: the fake in memory, and the one that Amazon ships for tests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.connectors.kinesis.lease_table import LeaseClaim, LeaseTable, LeaseWrite
from penstock.connectors.kinesis.positions import After, AtHorizon, AtTime
from penstock.errors import LeaseLost, LeaseTableInvalid

SEQ = 49590338271490256608559692538361571095921575989136588898
ME, OTHER = LeaseClaim(owner="job", process="1"), LeaseClaim(owner="kcl", process="2")


def shard(position=AtHorizon(), parents=(), first=0, last=99):  # noqa: B008 - it is frozen
    return SimpleNamespace(position=position, parents=parents, first_hash=first, last_hash=last)


class Rows:
    """Rows as the KCL writes them."""

    def __init__(self, client, table):
        self.client, self.table = client, table

    def put(self, key, checkpoint, *, sub=0, counter=3, **more):
        row = {
            "leaseKey": {"S": key},
            "leaseCounter": {"N": str(counter)},
            "checkpoint": {"S": checkpoint},
            "checkpointSubSequenceNumber": {"N": str(sub)},
            "ownerSwitchesSinceCheckpoint": {"N": "4"},
            **{name: {"S": value} if isinstance(value, str) else value for name, value in more.items()},
        }
        self.put_row(row)

    def put_row(self, row):
        self.client.put_item(
            TableName=self.table,
            Item=row,
            ConditionExpression="attribute_not_exists(leaseKey)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )

    def get(self, key):
        answer = self.client.get_item(TableName=self.table, Key={"leaseKey": {"S": key}}, ConsistentRead=True)
        return answer.get("Item")

    def at(self, key):
        row = self.get(key)
        return row["checkpoint"]["S"], int(row["checkpointSubSequenceNumber"]["N"]), int(row["leaseCounter"]["N"])


class LeaseTableContract:
    """The suite; a subclass has the fixtures ``client`` and ``name``."""

    @pytest.fixture
    def table(self, client, name):
        return LeaseTable(client, name)

    @pytest.fixture
    def rows(self, client, name):
        return Rows(client, name)

    # ---- the export write

    @pytest.mark.parametrize(
        ("before", "position", "after"),
        [
            (("TRIM_HORIZON", 0), After(5), ("5", 0)),
            (("LATEST", 0), After(SEQ, 2), (str(SEQ), 2)),
            (("AT_TIMESTAMP", 0), After(SEQ), (str(SEQ), 0)),
            ((str(SEQ), 0), After(SEQ + 1), (str(SEQ + 1), 0)),
            (("9", 7), After(10), ("10", 0)),
            (("99", 0), After(100), ("100", 0)),
            ((str(SEQ), 1), After(SEQ, 2), (str(SEQ), 2)),
        ],
    )
    def test_a_row_advances(self, table, rows, before, position, after):
        rows.put("s", before[0], sub=before[1], pendingCheckpoint="7", penstockTimestampMs={"N": "5"}, foreign="kept")
        assert table.advance("s", position) is LeaseWrite.NOW
        assert rows.at("s") == (*after, 4), "with a write the counter changes"
        row = rows.get("s")
        assert row["ownerSwitchesSinceCheckpoint"] == {"N": "0"}
        assert row["foreign"] == {"S": "kept"}
        assert not {"pendingCheckpoint", "penstockTimestampMs", "leaseOwner"} & row.keys()

    @pytest.mark.parametrize(
        ("before", "position"),
        [
            (("SHARD_END", 0), After(SEQ)),
            ((str(SEQ), 0), After(SEQ - 1)),
            ((str(SEQ), 2), After(SEQ, 2)),
            ((str(SEQ), 2), After(SEQ, 1)),
            (("10", 0), After(9)),
            (("100", 0), After(99, 5)),
        ],
    )
    def test_a_row_never_goes_back(self, table, rows, before, position):
        rows.put("s", before[0], sub=before[1])
        assert table.advance("s", position) is LeaseWrite.ALREADY
        assert rows.at("s") == (*before, 3)

    @pytest.mark.parametrize(
        "owners",
        [{"leaseOwner": "w"}, {"leaseOwner": "w", "checkpointOwner": "w0"}, {"checkpointOwner": "w"}],
        ids=["owned", "handed over", "handed over to nobody"],
    )
    def test_a_row_of_another_worker_is_left_alone(self, table, rows, owners):
        rows.put("s", "5", **owners)
        for claim in (None, ME):
            with pytest.raises(LeaseLost, match=r"of shard s in table .* belongs to worker 'w0?'"):
                table.advance("s", After(6), claim=claim)
            with pytest.raises(LeaseLost):
                table.end("s", ["a"], claim=claim)
        assert table.advance("s", After(5)) is LeaseWrite.ALREADY, "the row is as far: nothing is lost"
        assert rows.at("s") == ("5", 0, 3)

    def test_a_missing_row_is_not_made_by_a_write(self, table, rows):
        assert table.advance("s", After(6)) is LeaseWrite.NO_ROW
        assert table.end("s", ["a"]) is LeaseWrite.NO_ROW
        assert table.release("s", ME) is False
        assert rows.get("s") is None

    # ---- new rows and ended shards

    def test_rows_are_inserted_once_with_all_that_is_known(self, table, rows):
        assert table.insert("c", shard(parents=("b", "a"), first=10, last=20), AtHorizon()) is True
        assert table.insert("c", shard(), After(9)) is False
        assert rows.get("c") == {
            "leaseKey": {"S": "c"},
            "leaseCounter": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": "TRIM_HORIZON"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "startingHashKey": {"S": "10"},
            "endingHashKey": {"S": "20"},
            "parentShardId": {"SS": ["a", "b"]},
        }
        table.insert("t", shard(), AtTime(1_700))
        assert rows.get("t")["checkpoint"] == {"S": "AT_TIMESTAMP"}
        assert rows.get("t")["penstockTimestampMs"] == {"N": "1700"}
        assert table.find("t").position == AtTime(1_700)

    def test_a_shard_ends_with_its_children_and_its_owner_lets_go(self, table, rows):
        rows.put("s", "5")
        assert table.end("s", ["b", "a"]) is LeaseWrite.NOW
        assert rows.at("s") == ("SHARD_END", 0, 4)
        assert sorted(rows.get("s")["childShardIds"]["SS"]) == ["a", "b"]
        assert table.end("s", ["b", "a"]) is LeaseWrite.ALREADY
        rows.put("t", "5", leaseOwner="job", penstockClaim="1")
        assert table.end("t", ["b"], claim=ME) is LeaseWrite.NOW
        assert not {"leaseOwner", "penstockClaim"} & rows.get("t").keys()

    # ---- owning

    def test_a_lease_is_taken_renewed_written_and_released(self, table, rows):
        rows.put("s", "5", checkpointOwner="w0")
        assert table.take(table.find("s"), ME)
        assert rows.get("s")["leaseOwner"] == {"S": "job"}
        assert "checkpointOwner" not in rows.get("s")
        table.renew(table.find("s"), ME)
        assert rows.at("s") == ("5", 0, 5)
        assert table.advance("s", After(6), claim=ME) is LeaseWrite.NOW
        with pytest.raises(LeaseLost):
            table.advance("s", After(7))
        assert table.release("s", ME)
        assert rows.at("s") == ("6", 0, 7)
        assert not {"leaseOwner", "penstockClaim"} & rows.get("s").keys()

    def test_one_of_two_that_have_seen_the_same_row_takes_it(self, table, rows):
        rows.put("s", "5")
        seen = table.find("s")
        assert table.take(seen, ME)
        assert not table.take(seen, OTHER)
        assert not table.evict(seen)
        assert table.take(seen, ME), "the same again is a lost answer"

    @pytest.mark.parametrize("process", ["1", "2"])
    def test_a_lease_that_changed_is_lost(self, table, rows, process):
        rows.put("s", "5")
        table.take(table.find("s"), ME)
        seen = table.find("s")
        table.take(seen, LeaseClaim(owner="job", process=process))
        if process == "1":  # it was us, and the answer was lost
            table.renew(seen, ME)
            table.renew(table.find("s"), ME)
            return
        with pytest.raises(LeaseLost):
            table.renew(seen, ME)

    def test_a_bumped_counter_and_a_deleted_row_are_a_lost_lease(self, table, rows):
        rows.put("s", "5", leaseOwner="job", penstockClaim="1")
        seen = table.find("s")
        for _ in range(2):
            table.advance("s", After(int(rows.at("s")[0]) + 1), claim=ME)
        with pytest.raises(LeaseLost):
            table.renew(seen, ME)

    def test_an_abandoned_owner_is_evicted(self, table, rows):
        rows.put("s", "5", leaseOwner="w", checkpointOwner="w0")
        assert table.evict(table.find("s"))
        assert rows.at("s") == ("5", 0, 4)
        assert not {"leaseOwner", "checkpointOwner"} & rows.get("s").keys()

    # ---- reading

    def test_rows_that_are_no_leases_are_skipped(self, table, rows):
        rows.put("a", "5", entityType="LEASE", leaseOwner="w", checkpointOwner="w0", pendingCheckpoint="6")
        rows.put("b", "SHARD_END")
        for key, kind in (("Leader", "LEADER"), ("w1", "WORKER_METRIC_STATS"), ("Migration3.0", "TABLE_MIGRATION")):
            rows.put_row({"leaseKey": {"S": key}, "entityType": {"S": kind}})
        found = table.read()
        assert sorted(found) == ["a", "b"]
        lease = found["a"]
        assert (lease.position, lease.owner, lease.holder, lease.has_pending) == (After(5), "w", "w0", True)
        table.insert("c", shard(), AtHorizon())
        assert rows.get("c")["entityType"] == {"S": "LEASE"}, "as the other rows have it"

    def test_the_rows_of_one_of_several_streams(self, client, name, rows):
        prefix = "123456789012:orders:1700000000"
        rows.put(f"{prefix}:shardId-0", "5", streamName=prefix, shardId="shardId-0")
        rows.put("123456789012:other:1700000001:shardId-0", "7")
        rows.put("shardId-0", "9")
        table = LeaseTable(client, name, stream=prefix)
        assert {key: lease.position for key, lease in table.read().items()} == {"shardId-0": After(5)}
        assert table.streams() == ["123456789012:orders:1700000000", "123456789012:other:1700000001"]
        assert table.advance("shardId-0", After(6)) is LeaseWrite.NOW
        assert table.insert("shardId-1", shard(), AtHorizon())
        row = rows.get(f"{prefix}:shardId-1")
        assert (row["streamName"], row["shardId"]) == ({"S": prefix}, {"S": "shardId-1"})
        assert LeaseTable(client, name).read()["shardId-0"].position == After(9)

    def test_a_row_that_is_no_lease_is_named(self, table, rows):
        rows.put_row({"leaseKey": {"S": "odd"}, "colour": {"S": "red"}})
        with pytest.raises(LeaseTableInvalid, match=r"Row 'odd' of table .* is no lease"):
            table.read()

    def test_a_table_that_is_not_there(self, client):
        table = LeaseTable(client, "no-such-table")
        assert table.exists() is False
        with pytest.raises(LeaseTableInvalid, match=r"There is no lease table no-such-table"):
            table.read()
        with pytest.raises(LeaseTableInvalid):
            table.advance("s", After(1))
        table.create()
        table.create()
        assert table.exists()
        assert table.read() == {}
