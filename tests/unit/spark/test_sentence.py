"""What is kept of Spark's long texts."""

import pytest

from headwater.spark.sentence import first_sentence


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nselec 1",
            "Syntax error at or near 'selec' (line 1, position 0)",
        ),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `a.b` cannot be resolved. Did you mean `c`? SQLSTATE: 4",
            "A column with name `a.b` cannot be resolved",
        ),
        ("[X] no full stop SQLSTATE: 42000; line 2 pos 7;\n'Project [1]", "no full stop (line 2, position 7)"),
        ("no class, nothing else", "no class, nothing else"),
    ],
)
def test_of_spark_s_long_text_the_first_sentence_and_the_place_are_kept(said, sentence):
    assert first_sentence(said) == sentence
