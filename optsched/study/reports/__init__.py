"""Reports for people: values in, one HTML page out that needs nothing but itself."""
