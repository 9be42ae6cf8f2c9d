"""DynamoDB in memory, as strict as the service for what the lease table uses; it refuses all else. And its faults."""

from __future__ import annotations

import copy
import re
import threading

from botocore.exceptions import ClientError, ConnectTimeoutError

_TOKEN = re.compile(r"\s*(<>|[=<(),]|:?[A-Za-z_][A-Za-z0-9_]*)")


def client_error(code, status=400, **more):
    answer = {"Error": {"Code": code, "Message": "as the test says"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError({**answer, **more}, "request")


def no_table():
    return client_error("ResourceNotFoundException")


def in_use():
    return client_error("ResourceInUseException")


def condition_failed(row):
    return client_error("ConditionalCheckFailedException", **({} if row is None else {"Item": row}))


def throttled():
    return client_error("ProvisionedThroughputExceededException")


def away():
    return ConnectTimeoutError(endpoint_url="http://dynamodb")


class Expression:
    """Reads the tokens of an expression and notes which values it uses."""

    def __init__(self, text, values):
        self.tokens, at = [], 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            assert found, f"the fake does not know {text[at:]!r}"
            self.tokens.append(found[1])
            at = found.end()
        self.values, self.used = values, set()

    def peek(self):
        return self.tokens[0] if self.tokens else None

    def take(self, wanted=None):
        token = self.tokens.pop(0)
        assert wanted is None or token == wanted, f"{token!r} where {wanted!r} belongs"
        return token

    def value(self):
        name = self.take()
        assert name.startswith(":"), name
        self.used.add(name)
        return self.values[name]


class Condition(Expression):
    """The conditions of the lease table's writes, over one row."""

    def __init__(self, text, values, row):
        super().__init__(text, values)
        self.row = row

    def holds(self):
        result = self.any()
        assert not self.tokens, f"the fake does not know {self.tokens}"
        return result

    def any(self):
        result = self.all()
        while self.peek() == "OR":
            self.take()
            result = self.all() or result
        return result

    def all(self):
        result = self.one()
        while self.peek() == "AND":
            self.take()
            result = self.one() and result
        return result

    def one(self):
        token = self.take()
        if token == "(":
            result = self.any()
            self.take(")")
            return result
        if token in ("attribute_exists", "attribute_not_exists"):
            self.take("(")
            there = self.take() in self.row
            self.take(")")
            return there == (token == "attribute_exists")
        if token == "size":
            self.take("(")
            text = self.row.get(self.take(), {}).get("S")
            self.take(")")
            return self.compare(None if text is None else {"N": str(len(text.encode()))})
        assert re.fullmatch("[a-zA-Z]+", token), f"the fake does not know {token!r}"
        return self.compare(self.row.get(token))

    def compare(self, left):
        operator = self.take()
        if operator == "IN":
            self.take("(")
            rights = [self.value()]
            while self.peek() == ",":
                self.take()
                rights.append(self.value())
            self.take(")")
            return left in rights
        right = self.value()
        if operator == "=":
            return left == right
        if operator == "<>":
            return left != right  # which holds for an attribute that is not there
        assert operator == "<", f"the fake does not know {operator!r}"
        if left is None or left.keys() != right.keys():
            return False
        ((kind, a),), ((_, b),) = left.items(), right.items()
        return int(a) < int(b) if kind == "N" else a.encode() < b.encode()


class Update(Expression):
    """The updates of the lease table's writes."""

    def apply(self, row):
        row, touched = copy.deepcopy(row), []
        while self.tokens:
            clause = self.take()
            assert clause in ("SET", "ADD", "REMOVE"), f"the fake does not know {clause!r}"
            while True:
                name = self.take()
                touched.append(name)
                if clause == "SET":
                    self.take("=")
                    row[name] = self.value()
                elif clause == "ADD":
                    row[name] = {"N": str(int(row.get(name, {"N": "0"})["N"]) + int(self.value()["N"]))}
                else:
                    row.pop(name, None)
                if self.peek() != ",":
                    break
                self.take()
        assert len(touched) == len(set(touched)), f"two paths overlap: {touched}"
        return row


def check_values(row):
    for name, value in row.items():
        ((kind, each),) = value.items()
        assert kind in ("S", "N", "SS"), (name, value)
        assert each, f"{name} is empty"
        assert kind != "SS" or len(set(each)) == len(each), f"{name} has an element twice"
        assert kind == "SS" or isinstance(each, str), (name, value)


class DynamoFake:
    """boto3's client of DynamoDB, for tables with the key ``leaseKey``.

    Attributes:
        tables: rows by table and key.
        faults: what the next requests do: an exception is raised, ``"lost"`` makes the request and loses its answer,
            ``None`` is none.
        history: each row that was written, in order: ``(key, row)``.
    """

    def __init__(self, *tables, page=1_000):
        self.tables = {name: {} for name in tables}
        self.faults = []
        self.history = []
        self.requests = []
        self.page = page
        self._lock = threading.Lock()

    def row(self, key, table="app"):
        return self.tables[table].get(key)

    def put(self, key, checkpoint, *, table="app", sub=0, counter=0, **more):
        self.tables[table][key] = {
            "leaseKey": {"S": key},
            "leaseCounter": {"N": str(counter)},
            "checkpoint": {"S": checkpoint},
            "checkpointSubSequenceNumber": {"N": str(sub)},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            **{name: {"S": value} if isinstance(value, str) else value for name, value in more.items()},
        }

    def _request(self, name, work):
        with self._lock:
            self.requests.append(name)
            fault = self.faults.pop(0) if self.faults else None
            if isinstance(fault, Exception):
                raise fault
            answer = work()
            if fault == "lost":
                raise away()
            return answer

    def _table(self, name):
        if name not in self.tables:
            raise no_table()
        return self.tables[name]

    def describe_table(self, *, TableName):
        return self._request("describe", lambda: self._table(TableName) is None or {"Table": {"TableStatus": "ACTIVE"}})

    def create_table(self, *, TableName, KeySchema, AttributeDefinitions, BillingMode):
        assert (KeySchema, AttributeDefinitions) == (
            [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            [{"AttributeName": "leaseKey", "AttributeType": "S"}],
        )
        assert BillingMode == "PAY_PER_REQUEST"

        def create():
            if TableName in self.tables:
                raise in_use()
            self.tables[TableName] = {}

        return self._request("create", create)

    def scan(self, *, TableName, ConsistentRead, ExclusiveStartKey=None):
        assert ConsistentRead is True

        def scan():
            table = self._table(TableName)
            after = ExclusiveStartKey["leaseKey"]["S"] if ExclusiveStartKey else ""
            keys = sorted(key for key in table if key > after)
            answer = {"Items": [copy.deepcopy(table[key]) for key in keys[: self.page]]}
            if len(keys) > self.page:
                answer["LastEvaluatedKey"] = {"leaseKey": {"S": keys[self.page - 1]}}
            return answer

        return self._request("scan", scan)

    def get_item(self, *, TableName, Key, ConsistentRead):
        assert ConsistentRead is True

        def get():
            row = self._table(TableName).get(Key["leaseKey"]["S"])
            return {} if row is None else {"Item": copy.deepcopy(row)}

        return self._request("get", get)

    def put_item(self, *, TableName, Item, ConditionExpression, ReturnValuesOnConditionCheckFailure):
        check_values(Item)
        return self._write(
            "put", TableName, Item["leaseKey"]["S"], ConditionExpression, {}, lambda _row: copy.deepcopy(Item)
        )

    def update_item(
        self,
        *,
        TableName,
        Key,
        UpdateExpression,
        ConditionExpression,
        ExpressionAttributeValues,
        ReturnValuesOnConditionCheckFailure,
    ):
        update = Update(UpdateExpression, ExpressionAttributeValues)

        def apply(row):
            changed = update.apply({**row, "leaseKey": Key["leaseKey"]})
            check_values(changed)
            return changed

        return self._write(
            "update",
            TableName,
            Key["leaseKey"]["S"],
            ConditionExpression,
            ExpressionAttributeValues,
            apply,
            used=Update(UpdateExpression, ExpressionAttributeValues),
        )

    def _write(self, request, name, key, condition, values, apply, used=None):
        def write():
            table = self._table(name)
            row = table.get(key)
            asked = Condition(condition, values, row or {})
            holds = asked.holds()
            if used is not None:
                used.apply({"leaseKey": {"S": key}})
                assert asked.used | used.used == set(values), "a value that no expression uses is refused"
            if not holds:
                raise condition_failed(row)
            table[key] = apply(row or {})
            self.history.append((key, copy.deepcopy(table[key])))
            return {}

        return self._request(request, write)
