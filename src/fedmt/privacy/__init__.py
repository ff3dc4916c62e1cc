"""What a center gives away of its data, and how little of it: masking hides an update inside a sum."""
