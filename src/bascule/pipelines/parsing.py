"""Values as JSON of a schema: what they hold, or why they are none.

Spark's own parser is lenient: it takes what begins with an object for one, and leaves out what follows. So each value
is looked at as a whole first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

PARSED, REASON = "parsed", "reason"
"""Columns that `judged` adds."""
NO_JSON = "no JSON of the schema"
_MALFORMED = "_malformed"


def columns_of(schema: str) -> list[StructField]:
    """Of a schema as Spark writes it."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(schema)
    assert isinstance(found, StructType)
    return found.fields


def judged(frame: DataFrame, schema: str) -> DataFrame:
    """With the value as `PARSED`, and `REASON`, which is null if it is what the schema says."""
    from pyspark.sql.functions import col, concat, from_json, lit, when
    from pyspark.sql.types import StringType, StructField, StructType

    given = columns_of(schema)
    whole = StructType([*given, StructField(_MALFORMED, StringType())])
    value = from_json(col("value").cast("string"), whole, {"columnNameOfCorruptRecord": _MALFORMED})
    broken = col(PARSED).isNull() | col(f"{PARSED}.{_MALFORMED}").isNotNull() | ~_is_object(col("value"))
    reason: Column | Any = when(broken, lit(NO_JSON))
    for path, missing in _missing(col(PARSED), StructType(given), ""):
        reason = reason.when(missing, concat(lit(path), lit(" is missing")))
    found = frame.withColumn(PARSED, value).withColumn(REASON, reason)
    return found.withColumn(PARSED, col(PARSED).dropFields(_MALFORMED))


def _missing(value: Column, kind: DataType, path: str) -> Iterator[tuple[str, Column]]:
    """What may not be null in a value of that type, at any depth: its path, and when it is missing."""
    from pyspark.sql.functions import map_values
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        for each in kind.fields:
            inner = value.getField(each.name)
            name = f"{path}.{each.name}" if path else each.name
            if not each.nullable:
                yield name, value.isNotNull() & inner.isNull()
            yield from _missing(inner, each.dataType, name)
    elif isinstance(kind, ArrayType):
        yield from _of_some(value, kind.elementType, f"{path}[]")
    elif isinstance(kind, MapType):
        yield from _of_some(map_values(value), kind.valueType, f"{path}[]")


def _of_some(values: Column, kind: DataType, path: str) -> Iterator[tuple[str, Column]]:
    """The same of the elements of an array."""
    from pyspark.sql.functions import exists, lit

    def lacks(number: int) -> Callable[[Column], Column]:
        return lambda element: list(_missing(element, kind, path))[number][1]

    for number, (name, _) in enumerate(_missing(lit(None), kind, path)):
        yield name, exists(values, lacks(number))


# --- the whole value ------------------------------------------------------------------------------------------------


def _is_object(value: Column) -> Column:
    from pyspark.sql.pandas.functions import arrow_udf

    def look(values: pa.Array) -> pa.Array:
        return pa.array(map(is_object, values.to_pylist()), pa.bool_())

    make: Any = arrow_udf
    found: Column = make(look, "boolean")(value)
    return found


def is_object(value: bytes) -> bool:
    """Whether it is one JSON object, in UTF-8, and nothing else."""
    try:
        return isinstance(_DECODER.decode(value.decode()), dict)
    except (ValueError, RecursionError):
        return False


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_int=float)
"""Integers of any length: whether a column has room for them, Spark says."""
