"""Word lists for sample posts and comments."""

from __future__ import annotations

NAMES = (
    *("Ada", "Grace", "Emmy", "Chidi", "Lucía", "Linus", "Barbara", "Edsger", "Katherine"),
    *("Margaret", "Dennis", "Radia", "Vint", "Frances", "Donald", "Hedy", "Alan", "Joan"),
    *("佐藤 花子", "鈴木 一郎", "高橋 美咲", "田中 蓮", "山本 陽葵", "渡辺 健太", "小林 凛"),
    *("Søren", "Zoë", "Björn", "Nguyễn", "Olu", "Priya", "Mei", "Ivan", "Noa", "Tomás"),
)
POSTS = (
    ("Notes on a quiet queue", "A queue that is **never** watched is a queue that is full."),
    ("What a counter taught me", "One row is a traffic jam. *Twenty* rows are a road."),
    ("Reading pages backwards", "The last page is the first one that a test forgets."),
    ("A small index", "An index is a promise about order. Keep it in the transaction."),
    ("Measured twice", "The first number is a rumour, the second one a measurement."),
    ("On being idempotent", "Press the button *again*. Nothing happens: that is the feature."),
    ("The cost of a list", "Reading by offset reads everything that it skips."),
    ("Time is not an order", "Two comments may share a millisecond. They may not share a place."),
    ("When a cache forgets", "What is right without the cache is fast with it."),
    ("Writing it down first", "Source data first, everything that follows from it later."),
)
POSTS_JA = (
    ("静かなキューについて", "誰も見ていないキューは、**必ず**いっぱいになります。"),
    ("ページを逆から読む", "最後のページは、テストが最初に忘れるページです。"),
    ("小さなインデックス", "インデックスは順序の約束です。トランザクションの中で守りましょう。"),
    ("時刻は順序ではない", "同じミリ秒に二つのコメントが届くことがあります。"),
    ("キャッシュが忘れたら", "キャッシュがなくても正しいものは、あれば速くなります。"),
    ("二度測る", "最初の数字は噂、二番目の数字が*測定*です。"),
)
_ENGLISH = (
    "## What we saw\n\nThe page answered in a few milliseconds, and went on doing so with a "
    "thousand times as many rows. That is not luck: it reads what it shows, and one row more.",
    "> A row that was there throughout is seen exactly once.\n\nThat sentence took us a week. It "
    "says nothing about rows that come and go, and it should not.",
    "```python\npage = posts.page(tokens, rows, page_token=token)\nfor post in page.items:\n"
    "    print(post.title)\n```\n\nThe token is signed, so nobody makes one up.",
    "1. Take the number in a transaction.\n2. Write the post in the same one.\n3. Read it by its "
    "key.\n\nThere is no fourth step.",
    "| design | reads for page 500 |\n|---|---|\n| offset | 10,000 |\n| key | 21 |\n\nThe table "
    "is short because the story is.",
    "We tried the obvious thing first. It worked until two people pressed *Send* in the same "
    "moment, and then it worked for one of them.",
    "Some say that nobody reads beyond page three. Crawlers do, and so does the colleague who "
    "looks for the post that you are about to delete.",
    "See also the [documentation of Datastore](https://cloud.google.com/datastore/docs), where the "
    "limits are.",
)
_JAPANESE = (
    "## 分かったこと\n\n行が千倍になっても、ページは数ミリ秒で返ってきました。表示する行と、"
    "もう一行しか読まないからです。",
    "> ずっとそこにあった行は、ちょうど一度だけ表示される。\n\nこの一文に一週間かかりました。",
    "1. トランザクションで番号を取る。\n2. 同じトランザクションで記事を書く。\n3. キーで読む。",
    "最初は簡単な方法を試しました。二人が同時に送信するまでは、うまく動いていました。",
    "三ページより先は誰も読まないと言われます。でもクローラーは読みます。",
    "```python\npage = posts.page(tokens, rows, page_token=token)\n```\n\n"
    "トークンは署名されています。",
)
# Paragraphs, by whether they are in Japanese.
TOPICS = {False: _ENGLISH, True: _JAPANESE}
COMMENTS = (
    "We had the same problem last year, and the same answer.",
    "Is that number with or without the cache?",
    "Thank you, this saved my afternoon.",
    "I am not convinced. What happens when the clock goes back?",
    "It works on the emulator. Has anybody seen it in production?",
    "Nice. I would put the width into the key, too.",
    "How many rows did you try?",
    "The last page is where it broke for us.",
    "Small remark: two people may well write in the same millisecond.",
    "+1, and <b>not</b> in bold.",
    "Could you show the code?",
    "This is the part that everybody forgets.",
)
COMMENTS_JA = (
    "とても参考になりました。ありがとうございます。",
    "同じ問題で悩んでいました。",
    "時計が戻ったらどうなりますか?",
    "キャッシュなしの数字ですか?",
    "エミュレーターでは動きました。本番ではどうでしょう。",
    "コードも見てみたいです。",
)
