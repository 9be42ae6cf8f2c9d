"""What operators do with schemas; knows nothing of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def nullable(schema: StructType) -> StructType:
    """Columns read back from files may all be NULL, as far as Spark knows; so a schema of state never says otherwise.

    >>> from pyspark.sql.types import ArrayType, IntegerType, StructType
    >>> nullable(StructType().add("a", ArrayType(IntegerType(), containsNull=False), nullable=False))
    StructType([StructField('a', ArrayType(IntegerType(), True), True)])
    """
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, _nullable(field.dataType), nullable=True) for field in schema.fields])


def _nullable(data_type: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, StructType):
        return nullable(data_type)
    if isinstance(data_type, ArrayType):
        return ArrayType(_nullable(data_type.elementType), containsNull=True)
    if isinstance(data_type, MapType):
        return MapType(_nullable(data_type.keyType), _nullable(data_type.valueType), valueContainsNull=True)
    return data_type
