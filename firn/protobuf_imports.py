"""Files that a .proto text may import without a reference, because Confluent's registry and serializers have them.

Names, numbers and types of their fields and enum values are those of the public files. Comments and options are left out.
"""

_META = """
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4; }
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
extend google.protobuf.FileOptions { optional Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { optional Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { optional Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { optional Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { optional Meta enum_value_meta = 1088; }
"""
_DECIMAL = "package confluent.type; message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }"
_VARIANT = "package confluent.type; message Variant { bytes metadata = 1; bytes value = 2; }"
_CALENDAR_PERIOD = """
enum CalendarPeriod {
  CALENDAR_PERIOD_UNSPECIFIED = 0; DAY = 1; WEEK = 2; FORTNIGHT = 3; MONTH = 4; QUARTER = 5; HALF = 6; YEAR = 7;
}
"""
_COLOR = """
import "google/protobuf/wrappers.proto";
message Color { float red = 1; float green = 2; float blue = 3; google.protobuf.FloatValue alpha = 4; }
"""
_DATETIME = """
import "google/protobuf/duration.proto";
message DateTime {
  int32 year = 1; int32 month = 2; int32 day = 3; int32 hours = 4; int32 minutes = 5; int32 seconds = 6; int32 nanos = 7;
  oneof time_offset { google.protobuf.Duration utc_offset = 8; TimeZone time_zone = 9; }
}
message TimeZone { string id = 1; string version = 2; }
"""
_DAY_OF_WEEK = """
enum DayOfWeek {
  DAY_OF_WEEK_UNSPECIFIED = 0;
  MONDAY = 1; TUESDAY = 2; WEDNESDAY = 3; THURSDAY = 4; FRIDAY = 5; SATURDAY = 6; SUNDAY = 7;
}
"""
_MONTH = """
enum Month {
  MONTH_UNSPECIFIED = 0; JANUARY = 1; FEBRUARY = 2; MARCH = 3; APRIL = 4; MAY = 5; JUNE = 6;
  JULY = 7; AUGUST = 8; SEPTEMBER = 9; OCTOBER = 10; NOVEMBER = 11; DECEMBER = 12;
}
"""
_POSTAL_ADDRESS = """
message PostalAddress {
  int32 revision = 1; string region_code = 2; string language_code = 3; string postal_code = 4; string sorting_code = 5;
  string administrative_area = 6; string locality = 7; string sublocality = 8; repeated string address_lines = 9;
  repeated string recipients = 10; string organization = 11;
}
"""
_OF_GOOGLE = {
    "calendar_period": _CALENDAR_PERIOD,
    "color": _COLOR,
    "date": "message Date { int32 year = 1; int32 month = 2; int32 day = 3; }",
    "datetime": _DATETIME,
    "dayofweek": _DAY_OF_WEEK,
    "expr": "message Expr { string expression = 1; string title = 2; string description = 3; string location = 4; }",
    "fraction": "message Fraction { int64 numerator = 1; int64 denominator = 2; }",
    "latlng": "message LatLng { double latitude = 1; double longitude = 2; }",
    "money": "message Money { string currency_code = 1; int64 units = 2; int32 nanos = 3; }",
    "month": _MONTH,
    "postal_address": _POSTAL_ADDRESS,
    "quaternion": "message Quaternion { double x = 1; double y = 2; double z = 3; double w = 4; }",
    "timeofday": "message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }",
}
"""The folder ``google/type``."""
_SYNTAX = 'syntax = "proto3"; '
TEXTS = {
    "confluent/meta.proto": _META,
    "confluent/type/decimal.proto": _SYNTAX + _DECIMAL,
    "confluent/type/variant.proto": _SYNTAX + _VARIANT,
    # The earlier name of the file of Decimal.
    "confluent/types/decimal.proto": f'{_SYNTAX}import public "confluent/type/decimal.proto";',
    **{f"google/type/{name}.proto": f"{_SYNTAX}package google.type; {text}" for name, text in _OF_GOOGLE.items()},
}
"""The texts by the name of their import. Files of protoc, such as ``google/protobuf/timestamp.proto``, are not here."""
