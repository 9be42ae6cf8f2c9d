"""What may be kept of Spark: plans whose result depends on their input rows alone."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.plans import plan_kind, plan_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.spark.blocks import JavaObject


# ---- what is allowed -------------------------------------------------------------------------------------------------
# An allow-list: what a later Spark adds is not kept until it is added here. It is looked for in the analysed plan,
# since Spark's optimiser turns functions of time and of the session into literals, and subqueries into values.
#
# Not in it, among others: subqueries and reused exchanges (they are no children of the plan, so their leaves would not
# be replaced), files (a kept scan does not see a new file), the time, the user and the catalogue (they would stand
# still), functions with a seed (they would draw the same numbers for each batch), calls into the JVM, and functions
# that give a time of day: cast to a timestamp, that is one of the current day.

_EXPRESSIONS: Final = frozenset(
    """
    Abs Acos Acosh Add AddMonths AggregateExpression Alias And AnyValue ApproxCountDistinctForIntervals
    ApproximatePercentile ArrayAggregate ArrayAppend ArrayBinarySearch ArrayCompact ArrayContains ArrayDistinct
    ArrayExcept ArrayExists ArrayFilter ArrayForAll ArrayInsert ArrayIntersect ArrayJoin ArrayMax ArrayMin ArrayPosition
    ArrayPrepend ArrayRemove ArrayRepeat ArraySize ArraySort ArrayTransform ArrayUnion ArraysOverlap ArraysZip Ascii
    Asin Asinh AssertTrue AtLeastNNonNulls Atan Atan2 Atanh AttributeReference Average BRound Base32 Base64 Between Bin
    BinaryPad BinaryPredicate BitAndAgg BitLength BitOrAgg BitXorAgg BitmapAndAgg BitmapBitPosition BitmapBucketNumber
    BitmapConstructAgg BitmapCount BitmapOrAgg BitwiseAnd BitwiseCount BitwiseGet BitwiseNot BitwiseOr BitwiseXor
    BloomFilterAggregate BoolAnd BoolOr Bucket CaseWhen Cast CastTimestampNTZToLong Cbrt Ceil CheckOverflow
    CheckOverflowInSum CheckOverflowInTableInsert Chr Coalesce Collate CollationAwareMurmur3Hash CollationAwareXxHash64
    CollationKey CollectList CollectSet CollectUnion CommonExpressionDef CommonExpressionRef Concat ConcatWs Contains
    Conv ConvertTimezone Corr Cos Cosh Cot Count CountIf CountMinSketchAgg CovPopulation CovSample Crc32 CreateArray
    CreateMap CreateNamedStruct Csc CsvToStructs DateAdd DateAddInterval DateAddYMInterval DateDiff DateFormatClass
    DateFromUnixDate DateSub DatetimeSub DayName DayOfMonth DayOfWeek DayOfYear DecimalDivideWithOverflowCheck Decode
    Divide DivideDTInterval DivideInterval DivideYMInterval DropField ElementAt Elt Encode EndsWith EqualNull
    EqualNullSafe EqualTo EulerNumber Exp Explode Expm1 Extract ExtractANSIIntervalDays ExtractANSIIntervalHours
    ExtractANSIIntervalMinutes ExtractANSIIntervalMonths ExtractANSIIntervalSeconds ExtractANSIIntervalYears
    ExtractIntervalDays ExtractIntervalHours ExtractIntervalMinutes ExtractIntervalMonths ExtractIntervalSeconds
    ExtractIntervalYears Factorial FindInSet First Flatten Floor FormatNumber FormatString FromUTCTimestamp FromUnixTime
    GeneratorOuter Get GetArrayItem GetArrayStructFields GetJsonObject GetMapValue GetStructField GetTimestamp
    GreaterThan GreaterThanOrEqual Greatest Hex HistogramNumeric HiveHash HllSketchAgg HllSketchEstimate HllUnion
    HllUnionAgg Hmac Hour HoursOfTime HyperLogLogPlusPlus Hypot ILike If In InSet InitCap Inline IntegralDivide Invoke
    IsNaN IsNotNull IsNull IsValidUTF8 JaroWinkler JsonObjectKeys JsonToStructs JsonTuple KnownFloatingPointNormalized
    KnownNotContainsNull KnownNotNull KnownNullable Kurtosis LambdaFunction Last LastDay Least Left Length
    LengthOfJsonArray LessThan LessThanOrEqual Levenshtein Like LikeAll LikeAny ListAgg Literal Log Log10 Log1p Log2
    Logarithm Lower Luhncheck MakeDTInterval MakeDate MakeDecimal MakeInterval MakeTimestamp MakeTimestampFromDateTime
    MakeTimestampLTZ MakeTimestampLTZNanos MakeTimestampNTZ MakeTimestampNTZNanos MakeValidUTF8 MakeYMInterval MapConcat
    MapContainsKey MapEntries MapFilter MapFromArrays MapFromEntries MapKeys MapSort MapValues MapZipWith Mask Max MaxBy
    MaxMinByK Md5 Median MicrosToTimestamp MillisToTimestamp Min MinBy Minute MinutesOfTime Mode Month MonthName
    MonthsBetween MultiGetJsonObject Multiply MultiplyDTInterval MultiplyInterval MultiplyYMInterval Murmur3Hash NaNvl
    NamedLambdaVariable NanosToTimestamp NextDay Not NotLikeAll NotLikeAny NullIf NullIfResult NullIfZero Nvl Nvl2
    OctetLength Or Overlay ParseToDate ParseToTimestamp ParseUrl Percentile PercentileCont PercentileDisc Pi Pmod
    PosExplode Pow PreciseTimestampConversion Product PythonUDF Quarter Quote RLike RaiseError RegExpCount RegExpExtract
    RegExpExtractAll RegExpInStr RegExpReplace RegExpSubStr RegrAvgX RegrAvgY RegrCount RegrIntercept RegrR2
    RegrReplacement RegrSXX RegrSXY RegrSYY RegrSlope Remainder ResolvedCollation Reverse Right Rint Round RoundCeil
    RoundFloor Sec Second SecondWithFraction SecondWithFractionNanos SecondsOfTime SecondsOfTimeWithFraction
    SecondsToTimestamp Sequence Sha1 Sha2 ShiftLeft ShiftRight ShiftRightUnsigned Signum Sin Sinh Size Skewness Slice
    SortArray SortOrder SoundEx SparkPartitionID SplitPart Sqrt StartsWith StaticInvoke StddevPop StddevSamp
    StringDecode StringInstr StringInstrWithOccurrence StringLPad StringLocate StringRPad StringRepeat StringReplace
    StringSpace StringSplit StringSplitSQL StringToMap StringTranslate StringTrim StringTrimBoth StringTrimLeft
    StringTrimRight StructsToCsv StructsToJson StructsToXml Substring SubstringIndex Subtract SubtractDates
    SubtractTimes SubtractTimestamps Sum Tan Tanh TimeDiff TimeToMicros TimeToMillis TimeToSeconds TimestampAdd
    TimestampAddInterval TimestampAddYMInterval TimestampDiff ToBinary ToCharacter ToDegrees ToNumber ToRadians
    ToUTCTimestamp ToUnixTimestamp TransformKeys TransformValues TruncDate TruncTimestamp TryAdd TryAesDecrypt TryDivide
    TryElementAt TryEval TryMakeInterval TryMakeTimestamp TryMakeTimestampFromDateTime TryMod TryMultiply TryParseUrl
    TrySubtract TryToBinary TryToNumber TryUrlDecode TryValidateUTF8 TypeOf UnBase32 UnBase64 UnaryMinus UnaryPositive
    Unhex UnixDate UnixMicros UnixMillis UnixNanos UnixSeconds UnixTimestamp UnscaledValue UpCast UpdateFields Upper
    UrlDecode UrlEncode ValidateUTF8 VariancePop VarianceSamp WeekDay WeekOfYear WidthBucket With XPathBoolean
    XPathDouble XPathFloat XPathInt XPathList XPathLong XPathShort XPathString XmlToStructs XxHash64 Year YearOfWeek
    ZeroIfNull ZipWith
    """.split()  # noqa: SIM905 - a list of this length, one a line, is no easier to read
)
_OF_THE_TASK: Final = frozenset({"PythonUDF", "SparkPartitionID"})
"""Expressions that may give one task another value than another; what a function of Python does is not known."""
_LOGICAL: Final = frozenset(
    {
        "Aggregate",
        "CollectMetrics",
        "Filter",
        "Generate",
        "Join",
        "LocalRelation",
        "LogicalRDD",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "PythonMapInArrow",
        "RepartitionByExpression",
        "ResolvedHint",
        "SubqueryAlias",
        "Union",
        "View",
    }
)
_PHYSICAL: Final = frozenset(
    {
        "ArrowEvalPythonExec",
        "BatchEvalPythonExec",
        "BroadcastExchangeExec",
        "BroadcastHashJoinExec",
        "BroadcastNestedLoopJoinExec",
        "CollectMetricsExec",
        "FilterExec",
        "GenerateExec",
        "HashAggregateExec",
        "InputAdapter",
        "MapInArrowExec",
        "MapInPandasExec",
        "ObjectHashAggregateExec",
        "ProjectExec",
        "PythonMapInArrowExec",
        "RDDScanExec",
        "ShuffledHashJoinExec",
        "ShuffleExchangeExec",
        "SortAggregateExec",
        "SortExec",
        "SortMergeJoinExec",
        "UnionExec",
        "WholeStageCodegenExec",
    }
)
_PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical."
_LEAVES: Final = "org.apache.spark.sql.execution."
_BUILT_IN: Final = "org.apache.spark.sql.catalyst.expressions."
_HASHED: Final = "org.apache.spark.sql.catalyst.plans.physical.HashPartitioning"
"""What a leaf says of its rows."""
_NUMBERS: Final = re.compile(r"\[-?\d+(,-?\d+)*\]")
_POINTS_IN_TIME: Final = re.compile('"(date|timestamp)')
"""How a data type's JSON names types that a text like 'now' or '06:00:00' can be cast to."""
_PARSERS: Final = frozenset({"CsvToStructs", "JsonToStructs", "ParseToDate", "ParseToTimestamp", "XmlToStructs"})
"""Expressions with such a cast inside, which is not in their JSON."""
_TIME_IN_TEXT: Final = re.compile(r"\d:")
"""What is in a text that may be a time of today."""
_YEAR: Final = re.compile(r"\s*[+-]?\d{4}")
"""How a text begins that is the same date whenever it is cast."""
_TIME_OF_DAY: Final = '"time('
"""How a plan's JSON begins the type TIME: cast to a timestamp, it is one of the current day."""


# ---- the checks ------------------------------------------------------------------------------------------------------


def json_of(plan: JavaObject) -> str | None:
    """A plan as JSON; ``None`` if Spark cannot write it."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        return str(plan.toJSON())
    except (Py4JJavaError, PySparkException):
        return None


def is_keepable(text: str) -> bool:
    """Whether an analysed plan, as JSON, may be planned once for many batches."""
    return _TIME_OF_DAY not in text and all(map(_is_allowed, _trees(json.loads(text))))


def is_row_wise(text: str) -> bool:
    """Whether what a plan, as JSON, computes of a row depends on that row alone, in whatever task."""
    nodes = [node for tree in _trees(json.loads(text)) for node in tree]
    return all(_is_allowed_node(node) and _name(node) not in _OF_THE_TASK for node in nodes)


def is_keepable_physical(plan: JavaObject) -> bool:
    """Whether Spark's physical plan consists of nodes whose copies are independent of one another."""
    return all(plan_kind(node) in _PHYSICAL for node in plan_nodes(plan))


def array_literals(text: str) -> list[tuple[int, ...]]:
    """The values of each array of BIGINT, none of them nullable, that is a literal in a plan, given as JSON."""
    return [
        tuple(map(int, literal["value"].strip("[]").split(",")))
        for node in json.loads(text)
        for tree in _trees(node)
        for literal in tree
        if _name(literal) == "Literal"
        and _is_array_of_bigint(literal["dataType"])
        and _NUMBERS.fullmatch(str(literal["value"]))
    ]


def _is_array_of_bigint(data_type: object) -> bool:
    kind = ("array", "long", False)
    return isinstance(data_type, dict) and tuple(map(data_type.get, ("type", "elementType", "containsNull"))) == kind


def _trees(found: Any) -> Iterator[Sequence[dict[str, Any]]]:
    """The trees of nodes in the JSON of a plan, each a list in which a node comes before its children."""
    if isinstance(found, list):
        nodes = [each for each in found if isinstance(each, dict) and "class" in each]
        if nodes:
            yield nodes
        for each in found:
            yield from _trees(each)
    elif isinstance(found, dict):
        for each in found.values():
            yield from _trees(each)


def _is_allowed(tree: Sequence[dict[str, Any]]) -> bool:
    return all(_is_allowed_node(node) and not _may_move(tree, place) for place, node in enumerate(tree))


def _is_allowed_node(node: dict[str, Any]) -> bool:
    kind, name = node["class"], _name(node)
    if kind.startswith(_BUILT_IN):
        return name in _EXPRESSIONS and node.get("udfDeterministic", True) is True
    return kind == _HASHED or (name in _LOGICAL and kind in (_PLANS + name, _LEAVES + name))


def _name(node: dict[str, Any]) -> str:
    return str(node["class"]).rpartition(".")[2]


def _may_move(tree: Sequence[dict[str, Any]], place: int) -> bool:
    """Whether a constant text, which may be 'now' or a time of today, becomes a date: a literal once optimised."""
    if not _makes_points_in_time(tree[place]):
        return False
    below = tree[place + 1 : place + _size(tree, place)]
    texts = [str(node["value"]) for node in below if _name(node) == "Literal" and node["value"] is not None]
    moving = [text for text in texts if _YEAR.match(text) is None]
    if any(_name(node) == "AttributeReference" for node in below):
        # the optimiser casts what one side of a condition or a field of a struct is
        return any(map(_TIME_IN_TEXT.search, moving))
    return bool(moving) or (bool(texts) and len(below) > 1)


def _makes_points_in_time(node: dict[str, Any]) -> bool:
    if _name(node) in ("Cast", "UpCast"):
        return _POINTS_IN_TIME.search(json.dumps(node["dataType"])) is not None
    return _name(node) in _PARSERS


def _size(tree: Sequence[dict[str, Any]], place: int) -> int:
    """The number of nodes of the subtree that begins at a place."""
    size = 1
    for _ in range(int(tree[place]["num-children"])):
        size += _size(tree, place + size)
    return size
