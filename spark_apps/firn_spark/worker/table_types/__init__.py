"""The types of tables that PyIceberg or pyarrow lack."""
